"""A cohort changes no decision: every step, block and output is the same with it and without it."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

import scheduler.cohort
from scheduler import KVCacheConfig, Request, SchedulerConfig, SchedulerOutput, SessionInput
from tests.fast.helpers import BLOCK_SIZE, Twins, random_request


@pytest.fixture(autouse=True)
def _join_for_any_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler.cohort, "SHORTEST_STAY", 1)


def drive(seed: int, twins: Twins, *, sessions: bool, num_requests: int, look_always: bool) -> None:
    random = Random(seed)
    added = 0
    rate = random.choice([0.1, 0.3, 1.0])
    for _ in range(3000):
        while added < num_requests and random.random() < rate:
            random_request(random, added, twins, sessions=sessions)
            added += 1
        if added and random.random() < 0.02:
            twins.abort(random.randrange(added))
        if random.random() < 0.01:
            twins.reset(preempt_running=random.random() < 0.5)
        if added and sessions and random.random() < 0.3:
            _speak(random, twins, random.randrange(added))
        abort_mid = random.randrange(added) if added and random.random() < 0.02 else None
        went_on = twins.step(abort_mid, look=look_always or random.random() < 0.2)
        if not went_on and added == num_requests:
            break
    twins.compare_requests()


def _speak(random: Random, twins: Twins, request_id: int) -> None:
    """One more input for a session, then its end: more would outgrow `max_model_len`."""
    request = twins.plain.requests.get(request_id)
    if request is None or not request.resumable:
        return
    if random.random() < 0.4 or request_id in twins.spoken:
        twins.submit_input(request_id, None)
    else:
        prompt = ((1000 * random.randint(1, 3), random.randint(1, 8)),)
        twins.submit_input(request_id, SessionInput(prompt, random.randint(1, 9)))
    twins.spoken.add(request_id)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1 << 30),
    ahead=st.booleans(),
    priority=st.booleans(),
    caching=st.booleans() | st.just(True),
    sessions=st.booleans(),
    seqs=st.sampled_from([2, 5, 12]),
    budget=st.sampled_from([12, 24, 100]),
    threshold=st.sampled_from([0, 0, 7]),
    chunked=st.booleans(),
    spare=st.sampled_from([2, 20, 60]),
    in_full=st.booleans(),
    look_always=st.booleans(),
    late=st.booleans(),
)
def test_random_mixes_come_out_the_same(
    seed: int,
    ahead: bool,
    priority: bool,
    caching: bool,
    sessions: bool,
    seqs: int,
    budget: int,
    threshold: int,
    chunked: bool,
    spare: int,
    in_full: bool,
    look_always: bool,
    late: bool,
) -> None:
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget if chunked else max(budget, 100),
        max_model_len=100,
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        policy="priority" if priority else "fcfs",
        async_scheduling=ahead,
        include_finished_set=True,
    )
    kv_cache = KVCacheConfig(26 + spare, BLOCK_SIZE, enable_caching=caching)
    twins = Twins(config, kv_cache, "0.33.0" if late else "0.16.0", in_full=in_full)
    drive(seed, twins, sessions=sessions, num_requests=25, look_always=look_always)


def test_long_answers_spend_most_of_their_steps_in_the_cohort() -> None:
    """The tests above would prove little if nobody ever joined."""
    twins = Twins(SchedulerConfig(max_model_len=1000), KVCacheConfig(500, BLOCK_SIZE))
    for i in range(5):
        twins.add(1000 * i + 40, {}, i, [(1000 * i + 1, 39)], 100, ignore_eos=True)
    steps = 0
    while twins.step(look=steps % 10 == 0):
        steps += 1
    assert twins.steps_with_members >= 97


def test_a_member_is_named_where_it_stood_when_the_step_was_planned() -> None:
    """Request 0 came first, was preempted and is back at the tail while its token is still in flight."""
    returned, member, later = (Request(i, ((1000 * i + 1, 8),), 5) for i in range(3))
    for order, request in enumerate((returned, member, later), 1):
        request.running_order = order
    output = SchedulerOutput(10)
    output.insert(returned, 8)
    output.insert(later, 8)
    returned.running_order = 4
    output.insert(member, 8)
    assert output.requests == [returned, member, later]
    output.remove(returned)
    assert (output.requests, output.running_orders) == ([member, later], [2, 3])
