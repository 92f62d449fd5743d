"""Scheduling ahead of the GPU: tokens in flight count as tokens to compute."""

from __future__ import annotations

from scheduler import Request
from tests.scheduler.helpers import make_engine, sample, scheduled


def test_a_second_step_is_planned_while_the_first_tokens_are_in_flight() -> None:
    engine = make_engine(async_scheduling=True)
    request = Request(0, ((1, 20),), 10)
    engine.add_request(request)
    first, second = engine.schedule(), engine.schedule()
    assert scheduled(first) == {0: 20}
    assert scheduled(second) == {0: 1}
    assert request.num_output_placeholders == 2
    assert request.num_computed_tokens == 21
    assert request.num_tokens == 20
    engine.update(first, sample)
    assert request.num_output_placeholders == 1
    assert request.num_tokens == 21


def test_no_step_is_planned_beyond_the_token_that_must_end_the_request() -> None:
    engine = make_engine(async_scheduling=True)
    engine.add_request(Request(0, ((1, 20),), 2))
    first, second = engine.schedule(), engine.schedule()
    assert scheduled(second) == {0: 1}
    engine.update(first, sample)
    assert scheduled(engine.schedule()) == {}  # the token in flight is its last
    outputs = engine.update(second, sample)
    assert outputs.entries[0][2] == "length"


def test_an_unfinished_prefill_has_nothing_in_flight() -> None:
    engine = make_engine(async_scheduling=True, max_num_batched_tokens=16)
    request = Request(0, ((1, 40),), 5)
    engine.add_request(request)
    engine.schedule()
    engine.schedule()
    assert request.num_output_placeholders == 0
    assert engine.schedule().samples == [True]
    assert request.num_output_placeholders == 1


def test_a_token_in_flight_for_a_preempted_request_still_arrives() -> None:
    engine = make_engine(async_scheduling=True, num_blocks=5)
    first, second = Request(0, ((1, 32),), 10), Request(1, ((500, 32),), 10)
    engine.add_request(first)
    engine.add_request(second)
    in_flight = engine.schedule()
    output = engine.schedule()  # the first needs a third block: the second is preempted
    assert output.preempted == [second]
    outputs = engine.update(in_flight, sample)
    assert [(entry[0], entry[1]) for entry in outputs.entries] == [(first, 1), (second, 1)]
    assert second.num_output_tokens == 1


def test_a_reset_drops_the_output_in_flight() -> None:
    engine = make_engine(async_scheduling=True)
    request = Request(0, ((1, 32),), 10)
    engine.add_request(request)
    in_flight = engine.schedule()
    engine.reset_prefix_cache(preempt_running=True)
    outputs = engine.update(in_flight, sample)
    assert outputs.entries == []
    assert request.num_output_tokens == 0
