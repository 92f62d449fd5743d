"""A policy never sees how long an answer will be: not by what it is shown, and not by any way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler import Request
from scheduler.kv_cache.pool import BlockPool
from scheduler.policies import (
    VICTIM_POLICIES,
    WAITING_ORDERS,
    AgedPriorityOrder,
    RequestView,
    RunningView,
    VictimView,
)
from tests.policies.helpers import fresh, play

SHOWN_OF_A_REQUEST = {
    "arrival_time",
    "client_index",
    "expected_output_tokens",
    "expected_remaining_tokens",
    "num_computed_tokens",
    "num_output_tokens",
    "num_preemptions",
    "num_prompt_tokens",
    "num_tokens",
    "priority",
    "request_id",
}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_view_shows_these_facts_and_no_others() -> None:
    """Who adds a field here says that a real server would know it. `max_tokens` is often the true length."""
    request = Request(0, ((1, 5),), 7)
    assert public(RequestView(request)) == SHOWN_OF_A_REQUEST
    assert public(VictimView(request, BlockPool(2, 1))) == SHOWN_OF_A_REQUEST | {"num_blocks_freed"}
    assert public(RunningView([request], BlockPool(2, 1))) == {"count", "index"}, "a plain sequence"


def test_what_a_view_shows_are_numbers_not_things_to_dig_in() -> None:
    request = Request(0, ((1, 5),), 7, expected_output_tokens=3.5)
    view = VictimView(request, BlockPool(2, 1))
    assert {type(getattr(view, name)) for name in public(view)} == {int, float}


@pytest.mark.parametrize("name", sorted(SHOWN_OF_A_REQUEST | {"num_blocks_freed", "max_tokens"}))
def test_a_policy_cannot_write(name: str) -> None:
    view = VictimView(Request(0, ((1, 5),), 7), BlockPool(2, 1))
    with pytest.raises(AttributeError):
        setattr(view, name, 1)


# --- no way round: what cannot be seen cannot change a decision ---------------------------------------------

ORDERS = {kind: order for kind, order in WAITING_ORDERS.items() if kind != "aged_priority"} | {
    "aged_priority": lambda: AgedPriorityOrder(10.0)
}
PROMPTS = st.lists(st.integers(1, 120), min_size=2, max_size=6)


def first_difference_may_show_at(
    story: list[list[tuple[int, int]]], lengths: dict[int, int], others: dict[int, int]
) -> int:
    """The first step planned after an answer has ended in one of the two worlds and not in the other."""
    made: dict[int, int] = {}
    for step, scheduled in enumerate(story):
        for request_id, _ in scheduled:
            made[request_id] = made.get(request_id, 0) + 1
            if lengths[request_id] != others[request_id] and made[request_id] >= min(
                lengths[request_id], others[request_id]
            ):
                return step + 1
    return len(story)


def stories_agree(
    prompts: list[int],
    lengths: list[int],
    others: list[int],
    guesses: list[float | None],
    policy: Callable[[], dict[str, object]],
) -> bool:
    """Two worlds that differ in true lengths alone, also where a client asks for exactly that many tokens.

    Every step must be the same as long as no answer has ended in one world and not in the other.
    """
    told = []
    for world in (lengths, others):
        requests = fresh(prompts, guesses=guesses, priorities=[i % 2 for i in range(len(prompts))])
        for request, length in zip(requests, world, strict=True):
            request.max_tokens = length
        told.append(play(requests, dict(enumerate(world)), num_blocks=13, max_num_seqs=4, **policy()))
    known = min(
        first_difference_may_show_at(told[0], dict(enumerate(lengths)), dict(enumerate(others))),
        first_difference_may_show_at(told[1], dict(enumerate(others)), dict(enumerate(lengths))),
    )
    return told[0][:known] == told[1][:known]


@settings(max_examples=80)
@given(
    data=st.data(),
    prompts=PROMPTS,
    policy=st.one_of(
        st.sampled_from(sorted(set(VICTIM_POLICIES) - {"most_blocks_freed"})).map(
            lambda kind: ("victim_policy", VICTIM_POLICIES[kind])
        ),
        st.sampled_from(list(ORDERS)).map(lambda kind: ("waiting_order", ORDERS[kind])),
    ),
)
def test_true_lengths_change_no_decision_before_they_show(
    data: st.DataObject, prompts: list[int], policy: tuple
) -> None:
    n = len(prompts)
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    others = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    assume(lengths != others)
    guesses = data.draw(st.lists(st.one_of(st.none(), st.floats(1, 60)), min_size=n, max_size=n))
    name, make = policy
    assert stories_agree(prompts, lengths, others, guesses, lambda: {name: make()})


class Clairvoyant:
    """Breaks in through a private name and reads what the client asked for."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        ends = [view._request.max_tokens for view in running]
        return ends.index(max(ends))


def test_that_check_would_catch_a_policy_that_knew() -> None:
    lengths, others = [40, 45, 50], [50, 45, 40]
    guesses: list[float | None] = [None] * 3
    assert not stories_agree([50, 50, 50], lengths, others, guesses, lambda: {"victim_policy": Clairvoyant()})
    assert stories_agree([50, 50, 50], lengths, others, guesses, dict)
