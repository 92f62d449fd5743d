"""Phase 1 of a step: running requests get the tokens they lack, and preempt when blocks run out."""

from __future__ import annotations

from scheduler import Request, RequestStatus
from tests.scheduler.helpers import free_blocks, ids, make_engine, make_requests, sample, scheduled, step


def test_a_long_prompt_is_computed_in_chunks_of_the_token_budget() -> None:
    engine = make_engine(max_num_batched_tokens=64)
    (request,) = make_requests(1, prompt_tokens=150)
    engine.add_request(request)
    chunks = [scheduled(step(engine)[0])[0] for _ in range(4)]
    assert chunks == [64, 64, 22, 1]


def test_only_the_step_that_completes_the_prompt_samples() -> None:
    engine = make_engine(max_num_batched_tokens=64)
    engine.add_request(make_requests(1, prompt_tokens=100)[0])
    assert [step(engine)[0].samples for _ in range(3)] == [[False], [True], [True]]


def test_running_requests_are_served_before_waiting_ones() -> None:
    engine = make_engine(max_num_batched_tokens=64)
    first, second = make_requests(2, prompt_tokens=100)
    engine.add_request(first)
    step(engine)
    engine.add_request(second)
    assert scheduled(step(engine)[0]) == {0: 36, 1: 28}


def test_the_long_prefill_threshold_caps_one_request_and_leaves_budget_to_others() -> None:
    engine = make_engine(max_num_batched_tokens=64, long_prefill_token_threshold=20)
    for request in make_requests(2, prompt_tokens=50):
        engine.add_request(request)
    assert scheduled(step(engine)[0]) == {0: 20, 1: 20}


def test_the_last_token_of_a_full_model_length_is_never_scheduled() -> None:
    # a text of max_model_len tokens has ended; its last token needs no KV
    engine = make_engine(max_model_len=40)
    engine.add_request(make_requests(1, prompt_tokens=36, ignore_eos=True)[0])
    finish = [step(engine)[1].entries[0][2] for _ in range(4)]
    assert finish == [None, None, None, "length"]


def test_under_fcfs_the_last_of_the_running_list_is_preempted_and_goes_to_the_front_of_the_queue() -> None:
    # 3 prompts of 2 blocks fill 6 blocks; the 33rd token of the first needs a seventh
    engine = make_engine(num_blocks=7)
    requests = make_requests(4)
    for request in requests:
        engine.add_request(request)
    step(engine)
    output, _ = step(engine)
    assert ids(output.preempted) == [2]
    assert scheduled(output) == {0: 1, 1: 1}
    assert requests[2].status is RequestStatus.PREEMPTED
    assert requests[2].num_computed_tokens == 0
    assert requests[2].num_output_tokens == 1  # outputs are kept
    assert ids(engine.waiting) == [2, 3]


def test_a_request_that_is_its_own_victim_ends_the_running_phase() -> None:
    engine = make_engine(num_blocks=5)
    for request in make_requests(2):
        engine.add_request(request)
    step(engine)
    output, _ = step(engine)  # request 0 takes the blocks of request 1
    assert ids(output.preempted) == [1]
    engine = make_engine(num_blocks=3)
    engine.add_request(make_requests(1)[0])
    step(engine)
    output, _ = step(engine)  # nobody else to take from
    assert ids(output.preempted) == [0]
    assert scheduled(output) == {}


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine = make_engine(num_blocks=8)  # 7 blocks: 2 + 2 + 2, one left
    for request in make_requests(3):
        engine.add_request(request)
    step(engine)
    engine.add_request(Request(9, ((7, 5),), 5))
    output, _ = step(engine)  # the first takes the block left, the second preempts the third
    assert ids(output.preempted) == [2]
    assert 9 not in scheduled(output)
    assert len(free_blocks(engine)) == 1  # and there would have been room


def test_under_priority_the_least_important_is_preempted_wherever_it_stands() -> None:
    engine = make_engine(num_blocks=7, policy="priority")
    requests = make_requests(3)
    for request, priority in zip(requests, (1, 5, 3), strict=True):
        request.priority = priority
        engine.add_request(request)
    step(engine)
    assert ids(engine.running) == [0, 2, 1]
    output, _ = step(engine)
    assert ids(output.preempted) == [1]


def test_a_victim_already_scheduled_in_the_step_is_taken_out_and_gives_its_tokens_back() -> None:
    engine = make_engine(num_blocks=5, policy="priority", max_num_batched_tokens=64)
    unimportant = Request(0, ((1, 20),), 50, priority=9)
    important = Request(1, ((500, 32),), 50, priority=0)
    engine.add_request(unimportant)
    step(engine)  # runs alone first, so it heads the running list
    engine.add_request(important)
    step(engine)
    assert ids(engine.running) == [0, 1]
    output, _ = step(engine)  # 0 fits into its blocks and is scheduled, then 1 needs a fifth block
    assert ids(output.preempted) == [0]
    assert scheduled(output) == {1: 1}
    assert output.total_num_scheduled_tokens == 1
    assert output.token_budget == 63


def test_equal_victims_under_priority_the_earliest_in_the_list_goes() -> None:
    engine = make_engine(num_blocks=7, policy="priority")
    requests = make_requests(3)
    for request in requests:
        request.arrival_time = 0.0
        engine.add_request(request)
    step(engine)
    output, _ = step(engine)
    # request 0 needs a block and is itself the earliest of the equal maxima
    assert ids(output.preempted) == [0]
    assert scheduled(output) == {}


def test_recomputed_tokens_are_those_computed_before_the_preemption() -> None:
    engine = make_engine(num_blocks=7, enable_caching=False)
    requests = make_requests(3, max_tokens=20, ignore_eos=True)
    for request in requests:
        engine.add_request(request)
    while engine.has_work():
        output = engine.schedule()
        engine.update(output, sample)
    victims = [request for request in requests if request.num_preemptions]
    assert victims
    for request in victims:
        assert request.num_recomputed_tokens >= request.num_prompt_tokens
    assert all(not request.num_recomputed_tokens for request in requests if not request.num_preemptions)
