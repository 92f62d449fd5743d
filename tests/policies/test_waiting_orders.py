"""Who is admitted first: what each waiting order looks at, and what none of them may change."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import EngineCore, KVCacheConfig, Request, SchedulerConfig
from scheduler.policies import (
    WAITING_ORDERS,
    AgedPriorityOrder,
    FairOrder,
    FcfsOrder,
    PriorityOrder,
    RequestView,
    ShortestJobFirst,
)
from scheduler.waiting import make_queue
from tests.policies.helpers import fresh, play

ORDERS = {kind: order for kind, order in WAITING_ORDERS.items() if kind != "aged_priority"} | {
    "aged_priority": lambda: AgedPriorityOrder(10.0)
}


def drained(order: object, requests: Sequence[Request]) -> list[int]:
    queue = make_queue(order)
    for request in requests:
        queue.add(request)
    return [queue.pop().request_id for _ in range(len(queue))]


def test_fcfs_is_the_order_of_arrival_and_the_preempted_come_first() -> None:
    queue = make_queue(FcfsOrder())
    a, b, c = fresh([10, 10, 10])
    queue.add(a)
    queue.add(b)
    queue.add_front(c)
    assert [queue.pop().request_id for _ in range(3)] == [2, 0, 1]


def test_priority_then_arrival_then_the_id_as_text() -> None:
    requests = fresh([1] * 11, priorities=[1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0])
    for request in requests:
        request.arrival_time = 0.0 if request.request_id in (9, 10) else 1.0
    assert drained(PriorityOrder(), requests) == [10, 1, 3, 9, 0, 2, 4, 5, 6, 7, 8]
    same = fresh([1] * 11)
    for request in same:
        request.arrival_time = 0.0
    assert drained(PriorityOrder(), same) == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9], '"10" < "2" as text'


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 5)),
            st.tuples(st.just("pop")),
            st.tuples(st.just("remove"), st.integers(0, 20)),
        ),
        max_size=40,
    )
)
def test_the_priority_queue_makes_exactly_the_moves_of_heapq(moves: list) -> None:
    """Beside it, a heap of plain tuples worked by the standard library: same array, not just same order."""
    queue = make_queue(PriorityOrder())
    twin: list[tuple[int, float, str]] = []
    requests: list[Request] = []
    for move in moves:
        if move[0] == "add":
            request = Request(len(requests), ((0, 1),), 1, priority=move[1], arrival_time=float(move[2]))
            requests.append(request)
            queue.add(request)
            heapq.heappush(twin, (request.priority, request.arrival_time, str(request.request_id)))
        elif move[0] == "pop" and twin:
            assert str(queue.pop().request_id) == heapq.heappop(twin)[2]
        elif move[0] == "remove":
            queue.remove([r for r in requests if r.request_id == move[1]])
            twin = [entry for entry in twin if entry[2] != str(move[1])]
            heapq.heapify(twin)
        assert [str(entry.request.request_id) for entry in queue._heap] == [entry[2] for entry in twin]


def test_with_aging_a_request_that_has_waited_long_enough_overtakes_a_more_important_one() -> None:
    """Two steps of priority are worth 20 s: the bulk request of t = 0 goes before anything after t = 20."""
    bulk, before, after = fresh([1, 1, 1], priorities=[2, 0, 0])
    bulk.arrival_time, before.arrival_time, after.arrival_time = 0.0, 19.0, 21.0
    assert drained(AgedPriorityOrder(10.0), [bulk, before, after]) == [1, 0, 2]
    assert drained(PriorityOrder(), [bulk, before, after]) == [1, 2, 0]


@given(
    ages=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), min_size=2, max_size=6),
    now=st.integers(1000, 5000),
)
def test_aging_needs_no_clock_its_order_is_that_of_the_aged_priorities_at_any_moment(
    ages: list[tuple[int, int]], now: int
) -> None:
    requests = fresh([1] * len(ages), priorities=[priority for priority, _ in ages])
    for request, (_, arrival) in zip(requests, ages, strict=True):
        request.arrival_time = float(arrival)
    aged = [priority - (now - arrival) / 8.0 for priority, arrival in ages]  # powers of two: exact
    order = drained(AgedPriorityOrder(8.0), requests)
    assert [aged[i] for i in order] == sorted(aged)


def test_shortest_job_first_goes_by_the_guess_and_knows_no_better() -> None:
    requests = fresh([500, 1, 1, 1], guesses=[3.0, 200.0, None, 40.0])
    assert drained(ShortestJobFirst(), requests) == [0, 3, 1, 2], "prompts do not count; without a guess last"


def test_what_is_done_of_a_job_no_longer_counts() -> None:
    nearly_done, short = fresh([1, 1], guesses=[100.0, 30.0])
    nearly_done.num_output_tokens = 90
    assert drained(ShortestJobFirst(), [short, nearly_done]) == [0, 1]


# --- fair turns ---------------------------------------------------------------------------------------------


def test_fair_turns_alternate_between_a_client_with_many_requests_and_one_with_few() -> None:
    """Client 0 sends four prompts before client 1 sends two, all alike; an admission costs its client 100."""
    requests = fresh([100] * 6, clients=[0, 0, 0, 0, 1, 1])
    assert drained(FairOrder(), requests) == [0, 4, 1, 5, 2, 3]
    assert drained(FcfsOrder(), requests) == [0, 1, 2, 3, 4, 5]


def test_turns_are_counted_in_tokens_not_in_requests() -> None:
    """One prompt of 300 is worth three of 100."""
    requests = fresh([300, 300, 100, 100, 100, 100], clients=[0, 0, 1, 1, 1, 1])
    assert drained(FairOrder(), requests) == [0, 2, 3, 4, 1, 5]


def test_output_is_charged_as_it_comes_at_its_own_weight() -> None:
    order = FairOrder(prompt_weight=1.0, output_weight=2.0)
    queue = make_queue(order)
    talker, other, next_of_talker = fresh([10, 10, 10], clients=[0, 1, 0])
    queue.add(talker)
    assert queue.pop() is talker
    queue.add(other)
    assert order.served == {0: 10.0, 1: 10.0}, "client 1 comes later and starts level"
    talker.num_output_tokens = 7
    queue.add(next_of_talker)
    assert queue.peek() is other
    assert order.served == {0: 24.0, 1: 10.0}


def test_idle_time_is_no_credit() -> None:
    """Client 0 was served 500 tokens while client 1 slept; awake, 1 does not get 500 tokens ahead."""
    order = FairOrder()
    queue = make_queue(order)
    a, b, c = fresh([250, 250, 250], clients=[0, 0, 0])
    sleeper = Request(7, ((5, 100),), 1, client_index=1, arrival_time=9.0)
    for request in (a, b, c):
        queue.add(request)
    queue.pop()
    queue.pop()
    queue.add(sleeper)
    assert order.served == {0: 500.0, 1: 500.0}
    assert queue.pop() is c, "of equally served clients, whose head came first"


def test_a_preempted_request_comes_first_of_its_client_and_its_prompt_is_not_charged_twice() -> None:
    order = FairOrder()
    queue = make_queue(order)
    first, second = fresh([100, 100], clients=[0, 0])
    queue.add(first)
    queue.add(second)
    assert queue.pop() is first
    first.num_cached_tokens = 0  # it was admitted
    queue.add_front(first)
    assert queue.pop() is first
    assert order.served == {0: 100.0}


def test_who_is_passed_over_by_a_gate_is_not_charged() -> None:
    order = FairOrder()
    queue = make_queue(order)
    held, free = fresh([100, 100], clients=[0, 0])
    queue.add(held)
    queue.add(free)
    set_aside = [queue.pop()]
    queue.put_back(set_aside)
    assert order.served == {0: 0.0}
    assert list(queue) == [held, free]


def test_two_busy_clients_get_the_same_tokens_whatever_the_number_of_their_requests() -> None:
    """The claim of fair turns: tokens served to backlogged clients differ by no more than a request's worth.

    Client 0 has 30 requests waiting, client 1 has 10; each costs 32 + 2 x 16 at most 64, one runs at a time.
    """
    order = FairOrder()
    engine = EngineCore(SchedulerConfig(max_num_seqs=1), KVCacheConfig(50), waiting_order=order)
    requests = fresh([32] * 40, clients=[0] * 30 + [1] * 10)
    for request in requests:
        engine.add_request(request)
    worst = 0.0
    while any(r.client_index == 1 and not r.is_finished for r in requests):
        output = engine.schedule()
        engine.update(output, lambda out: [[2 if r.num_output_tokens == 15 else 5] for r in out.requests])
        order.settle()
        worst = max(worst, abs(order.served[0] - order.served[1]))
    assert worst <= 64.0
    assert sum(r.is_finished for r in requests if r.client_index == 0) in (9, 10, 11)


# --- what no order may change -------------------------------------------------------------------------------


class BySize:
    """A user's own order: smallest prompt first."""

    def key(self, request: RequestView) -> tuple[int, int]:
        return (request.num_prompt_tokens, request.request_id)


def test_a_users_own_order_needs_a_key_and_nothing_else() -> None:
    assert drained(BySize(), fresh([30, 10, 20])) == [1, 2, 0]


WORK = st.lists(
    st.tuples(
        st.integers(1, 150),  # prompt tokens
        st.integers(1, 40),  # output tokens
        st.integers(0, 20),  # arrives at step
        st.one_of(st.none(), st.floats(1, 100)),  # guess
        st.integers(0, 2),  # priority
        st.integers(0, 2),  # client
    ),
    min_size=1,
    max_size=8,
)


def _requests(work: list) -> list[Request]:
    return fresh(
        [w[0] for w in work],
        guesses=[w[3] for w in work],
        priorities=[w[4] for w in work],
        clients=[w[5] for w in work],
    )


@settings(max_examples=60)
@given(
    work=WORK,
    kind=st.sampled_from(list(ORDERS)),
    num_blocks=st.sampled_from([14, 40]),
    seqs=st.integers(1, 4),
)
def test_an_order_decides_who_waits_and_everybody_is_served_in_full(
    work: list, kind: str, num_blocks: int, seqs: int
) -> None:
    requests = _requests(work)
    play(
        requests,
        {i: w[1] for i, w in enumerate(work)},
        arrivals={i: w[2] for i, w in enumerate(work)},
        num_blocks=num_blocks,
        max_num_seqs=seqs,
        waiting_order=ORDERS[kind](),
    )
    assert [request.num_output_tokens for request in requests] == [w[1] for w in work]


@settings(max_examples=40)
@given(work=WORK)
def test_one_client_alone_is_served_first_come_first_served_under_fair_turns(work: list) -> None:
    """With a single client there is nothing to be fair about: every step is as under FCFS."""

    def story(order: object) -> list:
        requests = _requests([(*w[:5], 0) for w in work])
        lengths, arrivals = {i: w[1] for i, w in enumerate(work)}, {i: w[2] for i, w in enumerate(work)}
        return play(requests, lengths, arrivals=arrivals, num_blocks=14, waiting_order=order)

    assert story(FairOrder()) == story(FcfsOrder())


@pytest.mark.parametrize("kind", ["priority", "aged_priority"])
def test_among_equals_of_priority_it_is_the_order_of_arrival(kind: str) -> None:
    assert drained(ORDERS[kind](), fresh([9] * 9)) == list(range(9))


@pytest.mark.parametrize("bad", [{"prompt_weight": -1.0}, {"prompt_weight": 0.0, "output_weight": 0.0}])
def test_weights_that_charge_nothing_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must not be negative nor both 0"):
        FairOrder(**bad)
