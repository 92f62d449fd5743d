"""Prompts share exactly the tokens that they are said to share, and no answer is mistaken for them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.scenario.yaml_text import Data
from sim.workload import RequestTable
from tests.workload.helpers import FIXED, build, poisson, tokens_of

EOS_TOKEN_ID = 2


def with_prefixes(
    num_requests: int, lengths: dict[str, Data] | None = None, **prefixes: Data
) -> RequestTable:
    return build(poisson(num_requests, lengths or FIXED, prefixes=prefixes)).table


def shared_tokens(table: RequestTable, one: int, other: int) -> int:
    """How many leading tokens two prompts have in common."""
    pairs = zip(tokens_of(table, one), tokens_of(table, other), strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(tokens_of(table, one)))


def test_prompts_are_distinct_and_answers_go_on_where_they_end() -> None:
    table = build(poisson(30)).table
    seen: set[int] = {EOS_TOKEN_ID}
    for index in range(30):
        ((start, length),) = table.prompt_ranges(index)
        assert length == 100
        assert table.output_start(index) == start + length
        tokens = set(range(start, start + length + int(table.output_tokens[index])))
        assert not tokens & seen
        seen |= tokens


def test_prompts_of_a_group_begin_alike_and_others_do_not() -> None:
    table = with_prefixes(12, groups=3, prefix_tokens=50, popularity="cycle")
    assert set(table.prompt_tokens) == {150}
    for one, other in combinations(range(12), 2):
        assert shared_tokens(table, one, other) == (50 if one % 3 == other % 3 else 0)


def test_a_prefix_may_lie_within_the_drawn_prompt() -> None:
    table = with_prefixes(4, groups=1, prefix_tokens=60, within_prompt=True)
    assert set(table.prompt_tokens) == {100}
    assert shared_tokens(table, 0, 1) == 60


def test_a_prompt_shorter_than_its_prefix_is_all_prefix() -> None:
    short: dict[str, Data] = {"kind": "fixed", "prompt_tokens": 20, "output_tokens": 5}
    table = with_prefixes(4, short, groups=1, prefix_tokens=60, within_prompt=True)
    assert table.prompt_ranges(0) == table.prompt_ranges(3) == ((table.prompt_ranges(0)[0][0], 20),)
    assert table.output_start(0) != table.output_start(3)


def test_only_a_share_of_the_requests_has_a_prefix() -> None:
    table = with_prefixes(20_000, groups=1, prefix_tokens=50, share=0.3)
    assert np.mean(table.prompt_tokens == 150) == pytest.approx(0.3, abs=0.015)
    plain = int(np.flatnonzero(table.prompt_tokens == 100)[0])
    assert len(table.prompt_ranges(plain)) == 1


def test_zipf_popularity_falls_with_the_rank_of_a_group() -> None:
    """Weights 1/k^s: with s = 1 and 4 groups, shares 12/25, 6/25, 4/25, 3/25."""
    table = with_prefixes(40_000, groups=4, prefix_tokens=10, popularity="zipf", zipf_exponent=1.0)
    firsts = np.array([table.prompt_ranges(index)[0][0] for index in range(len(table))])
    _, counts = np.unique(firsts, return_counts=True)
    assert counts / counts.sum() == pytest.approx([0.48, 0.24, 0.16, 0.12], abs=0.01)


def test_uniform_popularity_is_even() -> None:
    table = with_prefixes(40_000, groups=4, prefix_tokens=10)
    firsts = np.array([table.prompt_ranges(index)[0][0] for index in range(len(table))])
    _, counts = np.unique(firsts, return_counts=True)
    assert counts / counts.sum() == pytest.approx([0.25] * 4, abs=0.01)


def test_distinct_prompts_are_cycled_in_order() -> None:
    lengths: dict[str, Data] = {"kind": "uniform", "prompt_tokens": (5, 500), "output_tokens": (5, 500)}
    table = build(poisson(20, lengths, distinct_prompts=7)).table
    for index in range(7, 20):
        assert table.prompt_ranges(index) == table.prompt_ranges(index - 7)
        assert table.output_start(index) == table.output_start(index - 7)
        assert table.output_tokens[index] == table.output_tokens[index - 7]
    assert len({table.prompt_ranges(index) for index in range(20)}) == 7


def test_distinct_prompts_keep_their_prefix() -> None:
    table = build(poisson(30, FIXED, distinct_prompts=5, prefixes={"groups": 9, "prefix_tokens": 40})).table
    assert all(table.prompt_ranges(index) == table.prompt_ranges(index % 5) for index in range(30))


@given(
    groups=st.integers(1, 5),
    prefix_tokens=st.integers(1, 40),
    within_prompt=st.booleans(),
    share=st.floats(0, 1),
    distinct=st.none() | st.integers(1, 6),
)
def test_ranges_add_up_and_outputs_are_never_another_prompts_tokens(
    groups: int, prefix_tokens: int, within_prompt: bool, share: float, distinct: int | None
) -> None:
    lengths: dict[str, Data] = {"kind": "uniform", "prompt_tokens": (1, 60), "output_tokens": (1, 30)}
    prefixes: dict[str, Data] = {
        "groups": groups,
        "prefix_tokens": prefix_tokens,
        "within_prompt": within_prompt,
        "share": share,
    }
    table = build(poisson(12, lengths, prefixes=prefixes, distinct_prompts=distinct)).table
    prompts = [tokens_of(table, index) for index in range(12)]
    asked = {token for prompt in prompts for token in prompt}
    assert EOS_TOKEN_ID not in asked
    for index, prompt in enumerate(prompts):
        assert len(prompt) == table.prompt_tokens[index]
        start = table.output_start(index)
        assert not asked & set(range(start, start + int(table.output_tokens[index])))
