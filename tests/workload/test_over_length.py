"""Requests longer than the context are refused or cut, one by one, and said; lengths never turn negative."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.helpers import build, poisson, replay

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def test_a_row_that_asks_for_more_than_the_context_is_rejected_and_named(tmp_path: Path) -> None:
    """The row `0.0,10,5000` with max_model_len 4096 gave a prompt of -904 tokens elsewhere."""
    workload = replay(tmp_path, HEADER + "0.0,10,5000\n1.0,10,20\n", max_model_len=4096)
    assert workload.table.rejected.tolist() == [True, False]
    assert workload.table.prompt_tokens.tolist() == [10, 10]
    assert workload.notes == [
        "1 of 2 requests exceed max_model_len 4096 and are rejected: "
        f"{tmp_path}/t.csv:2: 10 prompt + 5000 output tokens"
    ]


def test_clipping_cuts_the_output_to_the_room_that_is_left(tmp_path: Path) -> None:
    workload = replay(tmp_path, HEADER + "0.0,10,5000\n", max_model_len=4096, over_length="clip")
    assert (workload.table.prompt_tokens[0], workload.table.output_tokens[0]) == (10, 4086)
    assert not workload.table.rejected.any()
    assert "clipped" in workload.notes[0]


def test_clipping_cuts_a_prompt_without_room_but_keeps_half_the_context(tmp_path: Path) -> None:
    text = HEADER + "0,9000,100\n1,4096,1\n2,9000,9000\n3,4000,96\n"
    table = replay(tmp_path, text, max_model_len=4096, over_length="clip").table
    assert table.prompt_tokens.tolist() == [3996, 4095, 2048, 4000]
    assert table.output_tokens.tolist() == [100, 1, 2048, 96]


def test_a_request_that_just_fits_is_left_alone(tmp_path: Path) -> None:
    workload = replay(tmp_path, HEADER + "0,4000,96\n1,4000,97\n", max_model_len=4096)
    assert workload.table.rejected.tolist() == [False, True]


def test_many_rejections_are_counted_and_three_shown() -> None:
    workload = build(
        poisson(500, {"kind": "fixed", "prompt_tokens": 5000, "output_tokens": 1}), max_model_len=4096
    )
    assert workload.table.rejected.all()
    assert workload.notes[0].startswith(
        "500 of 500 requests exceed max_model_len 4096 and are rejected: request 0: "
    )
    assert workload.notes[0].endswith(" and 497 more")


@given(
    lengths=st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)), min_size=1, max_size=20),
    max_model_len=st.integers(2, 5000),
)
def test_whatever_is_clipped_fits_and_keeps_a_token_of_each(
    lengths: list[tuple[int, int]], max_model_len: int
) -> None:
    components = tuple(
        {
            "name": str(index),
            "weight": 1,
            "lengths": {"kind": "fixed", "prompt_tokens": p, "output_tokens": o},
        }
        for index, (p, o) in enumerate(lengths)
    )
    mixture = {"kind": "mixture", "components": components}
    table = build(poisson(40, mixture, over_length="clip"), max_model_len=max_model_len).table
    assert (table.prompt_tokens + table.output_tokens <= max_model_len).all()
    assert table.prompt_tokens.min() >= 1
    assert table.output_tokens.min() >= 1


@pytest.mark.parametrize("rule", ["reject", "clip"])
def test_a_context_of_one_token_serves_nobody(rule: str) -> None:
    assert build(poisson(3, over_length=rule), max_model_len=1).table.rejected.all()
