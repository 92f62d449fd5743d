"""Who loses its blocks: what each victim policy looks at, and what none of them may change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import EngineCore, KVCacheConfig, SchedulerConfig
from scheduler.policies import (
    VICTIM_POLICIES,
    FcfsTail,
    FewestGenerated,
    LeastComputed,
    LowestPriority,
    MostBlocksFreed,
    ShortestRemaining,
    UnknownPolicyError,
    VictimView,
    policy_class,
)
from scheduler.policies.view import RunningView
from tests.policies.helpers import actor, choose, fresh, play

SEVERAL = [
    actor(0, computed=300, generated=3, blocks=[1, 2, 3, 4], expected=100, priority=1, arrival_time=0.0),
    actor(1, computed=50, generated=9, blocks=[5, 6], expected=20, priority=3, arrival_time=1.0),
    actor(2, computed=120, generated=1, blocks=[1, 7, 8], expected=9, priority=3, arrival_time=2.0),
    actor(3, computed=90, generated=5, blocks=[1, 2, 9], expected=30, priority=2, arrival_time=3.0),
]


@pytest.mark.parametrize(
    ("policy", "victim", "because"),
    [
        (FcfsTail(), 3, "it was admitted last"),
        (LowestPriority(), 2, "of the two least important it arrived later"),
        (LeastComputed(), 1, "50 computed tokens are lost, nobody loses fewer"),
        (MostBlocksFreed(), 2, "7 and 8 are its own; of 0's four blocks two are shared"),
        (FewestGenerated(), 2, "it has shown one token so far"),
        (ShortestRemaining(), 0, "97 tokens are expected to follow, more than of anybody else"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "choose") else "",
)
def test_each_policy_picks_by_its_own_measure(policy: object, victim: int, because: str) -> None:
    assert choose(policy, SEVERAL) == victim, because


@pytest.mark.parametrize("kind", VICTIM_POLICIES)
def test_the_choice_does_not_depend_on_who_lacks_blocks(kind: str) -> None:
    policy = VICTIM_POLICIES[kind]()
    assert len({choose(policy, SEVERAL, needy) for needy in range(4)}) == 1


@pytest.mark.parametrize("kind", VICTIM_POLICIES)
def test_of_equals_the_tail_goes_but_under_priority_the_first_as_in_vllm(kind: str) -> None:
    equals = [actor(i, computed=64, generated=2, blocks=[i + 1], expected=10) for i in range(3)]
    assert choose(VICTIM_POLICIES[kind](), equals) == (0 if kind == "priority" else 2)


def test_a_shared_block_frees_nothing_whatever_the_length() -> None:
    long_but_shared = actor(0, computed=64, blocks=[1, 2, 3, 4])
    twin = actor(1, computed=64, blocks=[1, 2, 3, 4])
    short = actor(2, computed=10, blocks=[5])
    assert choose(MostBlocksFreed(), [long_but_shared, twin, short]) == 2


def test_without_a_guess_a_request_is_taken_to_go_on_for_ever() -> None:
    assert choose(ShortestRemaining(), [actor(0), actor(1, expected=1e9)]) == 0


def test_an_answer_longer_than_guessed_has_one_token_left_not_less_than_none() -> None:
    overdue = actor(0, generated=50, expected=10)
    assert (
        choose(ShortestRemaining(), [overdue, actor(1, generated=0, expected=0.5)]) == 1
    )  # both one: the tail
    assert VictimView(overdue, None).expected_remaining_tokens == 1.0


def test_a_victim_already_scheduled_in_this_step_is_taken_out_of_it_and_its_tokens_go_to_others() -> None:
    """Twelve blocks for prompts of five, two and three: the third finds none for its first own token."""
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(13), victim_policy=LeastComputed())
    for request in fresh([80, 32, 48]):
        engine.add_request(request)
    first = engine.schedule()
    engine.update(first, lambda _: [[5], [5], [5]])
    second = engine.schedule()
    assert [request.request_id for request in second.preempted] == [1]
    assert [request.request_id for request in second.requests] == [0, 2]
    assert second.total_num_scheduled_tokens == 2


def test_under_fcfs_the_same_story_costs_the_third_request_its_place() -> None:
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(13))
    for request in fresh([80, 32, 48]):
        engine.add_request(request)
    engine.update(engine.schedule(), lambda _: [[5], [5], [5]])
    second = engine.schedule()
    assert [request.request_id for request in second.preempted] == [2]
    assert [request.request_id for request in second.requests] == [0, 1]


class _NamesNobody:
    def choose(self, running: RunningView, needy: VictimView) -> int:
        return len(running)


def test_a_policy_that_names_nobody_is_told_so() -> None:
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(13), victim_policy=_NamesNobody())
    for request in fresh([80, 32, 48]):
        engine.add_request(request)
    engine.update(engine.schedule(), lambda _: [[5], [5], [5]])
    with pytest.raises(ValueError, match="_NamesNobody chose victim 3 of 3 running requests"):
        engine.schedule()


def test_an_unknown_name_gets_the_list_of_those_there_are() -> None:
    with pytest.raises(
        UnknownPolicyError, match=r"no policy 'least_compute'; known are fcfs_tail, .*did you mean 'least_"
    ):
        policy_class(VICTIM_POLICIES, "least_compute")


WORK = st.lists(
    st.tuples(
        st.integers(1, 200),  # prompt tokens
        st.integers(1, 60),  # output tokens
        st.integers(0, 30),  # arrives at step
        st.one_of(st.none(), st.floats(1, 100)),  # guess
        st.integers(0, 2),  # priority
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(work=WORK, kind=st.sampled_from(list(VICTIM_POLICIES)))
def test_with_room_for_all_no_policy_changes_a_single_step(work: list, kind: str) -> None:
    """Nobody needs to be preempted, so nobody is asked: the schedule is the default's."""

    def story(**policy: object) -> list:
        requests = fresh([w[0] for w in work], guesses=[w[3] for w in work], priorities=[w[4] for w in work])
        lengths = {i: w[1] for i, w in enumerate(work)}
        arrivals = {i: w[2] for i, w in enumerate(work)}
        return play(requests, lengths, arrivals=arrivals, num_blocks=200, **policy)

    assert story(victim_policy=VICTIM_POLICIES[kind]()) == story()


@settings(max_examples=60)
@given(
    work=WORK,
    kind=st.sampled_from(sorted(set(VICTIM_POLICIES) - {"most_blocks_freed"})),
    caching=st.booleans(),
)
def test_in_a_tight_cache_everybody_still_gets_every_token_and_the_laws_hold(
    work: list, kind: str, caching: bool
) -> None:
    """Policies decide who waits, never who is served: `play` checks the laws, all answers are complete."""
    requests = fresh([w[0] for w in work], guesses=[w[3] for w in work], priorities=[w[4] for w in work])
    play(
        requests,
        {i: w[1] for i, w in enumerate(work)},
        arrivals={i: w[2] for i, w in enumerate(work)},
        num_blocks=18,
        caching=caching,
        victim_policy=VICTIM_POLICIES[kind](),
    )
    assert [request.num_output_tokens for request in requests] == [w[1] for w in work]
