"""Phase 2 of a step: who is admitted from the waiting queue, and who holds up whom."""

from __future__ import annotations

import pytest

from scheduler import Request, SchedulerConfig
from scheduler.policies import PriorityOrder
from scheduler.waiting import HeapQueue
from tests.scheduler.helpers import ids, make_engine, make_requests, run, scheduled, step


def test_requests_are_admitted_in_order_of_arrival_until_the_budget_is_spent() -> None:
    engine = make_engine(max_num_batched_tokens=70)
    for request in make_requests(3):
        engine.add_request(request)
    assert scheduled(step(engine)[0]) == {0: 32, 1: 32, 2: 6}


def test_no_more_than_max_num_seqs_run() -> None:
    engine = make_engine(max_num_seqs=2)
    for request in make_requests(5):
        engine.add_request(request)
    step(engine)
    assert ids(engine.running) == [0, 1]
    assert ids(engine.waiting) == [2, 3, 4]


def test_a_head_that_finds_no_blocks_holds_up_everybody_and_preempts_nobody() -> None:
    engine = make_engine(num_blocks=6)
    big, small = Request(1, ((500, 60),), 5), Request(2, ((900, 5),), 5)
    (running,) = make_requests(1)
    engine.add_request(running)
    step(engine)
    engine.add_request(big)
    engine.add_request(small)
    output, _ = step(engine)
    assert scheduled(output) == {0: 1}
    assert ids(engine.waiting) == [1, 2]
    assert not output.preempted


def test_only_the_blocks_of_the_first_chunk_must_be_free() -> None:
    engine = make_engine(num_blocks=4, max_num_batched_tokens=16)
    engine.add_request(Request(0, ((500, 600),), 5))  # would need 38 blocks in all
    assert scheduled(step(engine)[0]) == {0: 16}


def test_without_chunked_prefill_a_prompt_beyond_the_budget_left_waits_and_holds_up_the_rest() -> None:
    engine = make_engine(max_num_batched_tokens=64, enable_chunked_prefill=False)
    for request in [Request(0, ((1, 40),), 5), Request(1, ((500, 40),), 5), Request(2, ((900, 5),), 5)]:
        engine.add_request(request)
    assert scheduled(step(engine)[0]) == {0: 40}
    assert scheduled(step(engine)[0]) == {0: 1, 1: 40, 2: 5}


def test_under_priority_ties_are_broken_by_arrival_and_then_by_the_id_as_text() -> None:
    queue = HeapQueue(PriorityOrder())
    for request_id, priority, arrival in [(9, 1, 2.0), (10, 1, 2.0), (3, 1, 1.0), (4, 0, 9.0)]:
        queue.add(Request(request_id, ((1, 4),), 1, priority=priority, arrival_time=arrival))
    assert ids(list(queue)) == [4, 3, 10, 9]


def test_a_heap_does_not_notice_a_changed_key_until_it_moves_something() -> None:
    queue = HeapQueue(PriorityOrder())
    requests = make_requests(5)
    for request in requests:
        queue.add(request)
    requests[4].arrival_time = -1.0  # now the smallest key, at the bottom of the heap
    assert queue.peek() is requests[0]
    queue.remove([requests[0]])  # heapified anew
    assert queue.peek() is requests[4]


def test_lora_requests_beyond_the_slots_are_passed_over_and_others_are_not() -> None:
    engine = make_engine(max_loras=2)
    names = ["a", "b", "c", None, "a"]
    for i, name in enumerate(names):
        engine.add_request(Request(i, ((1000 * (i + 1), 20),), 3, lora_name=name))
    assert list(scheduled(step(engine)[0])) == [0, 1, 3, 4]
    assert ids(engine.waiting) == [2]
    run(engine)


def test_a_request_with_a_grammar_waits_for_it_and_keeps_its_place() -> None:
    engine = make_engine(max_num_seqs=2)
    for i in range(4):
        engine.add_request(Request(i, ((1000 * (i + 1), 20),), 2, needs_grammar=i == 0))
    assert list(scheduled(step(engine)[0])) == [1, 2]
    assert ids(engine.waiting) == [0, 3]
    engine.grammar_ready(0)
    step(engine)
    assert list(scheduled(step(engine)[0])) == [0, 3]


def test_an_empty_configuration_is_refused_with_its_numbers() -> None:
    with pytest.raises(ValueError, match="max_num_seqs must be at least 1, not 0"):
        SchedulerConfig(max_num_seqs=0)


def test_a_user_can_order_the_queue_and_choose_victims() -> None:
    class ShortestPromptFirst:
        def key(self, request: Request) -> tuple[int, int]:
            return (request.num_prompt_tokens, request.request_id)

    engine = make_engine(max_num_seqs=1, waiting_order=ShortestPromptFirst())
    for i, length in enumerate((30, 10, 20)):
        engine.add_request(Request(i, ((1000 * (i + 1), length),), 1))
    order = []
    while engine.has_work():
        order += list(scheduled(step(engine)[0]))
    assert order == [1, 2, 0]
