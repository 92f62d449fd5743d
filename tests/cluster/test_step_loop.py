"""The step loop by hand: what ends when, with one batch in flight, two, and a pipeline."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scheduler.release import release
from sim.cluster.recorder import Status
from tests.cluster.helpers import FixedTimer, make_table, make_world, step_spans, times_of, token_times_s


def test_a_lone_request_takes_one_step_for_its_prompt_and_one_for_each_further_token():
    world = make_world(make_table([2.0], prompt=100, output=4), FixedTimer(0.5))
    world.run()
    assert token_times_s(world, 0) == [2.5, 3.0, 3.5, 4.0]
    times = times_of(world)
    assert times.ttft_s[0] == 0.5
    assert times.tpot_s[0] == 0.5
    assert times.e2e_s[0] == 2.0


def test_a_synchronous_step_takes_host_and_gpu_time_one_after_the_other():
    world = make_world(make_table([0.0], output=3), FixedTimer(1.0, host_s=0.25))
    world.run()
    assert step_spans(world) == [(0.0, 1.25), (1.25, 2.5), (2.5, 3.75)]


def test_asynchronous_scheduling_hides_the_host_behind_the_gpu():
    """The host prepares step n + 1 while the GPU works on step n: only the first step shows host time."""
    world = make_world(
        make_table([0.0], output=3), FixedTimer(1.0, host_s=0.25), async_scheduling=True, ignore_eos=True
    )
    world.run()
    assert token_times_s(world, 0) == [1.25, 2.25, 3.25]


def test_asynchronous_scheduling_runs_at_the_pace_of_the_host_where_that_is_slower():
    """Host 2 s, GPU 1 s: batches are ready at 2, 4, 6, 8 and end a second later. The output of one is handled
    once the host has prepared the next, at 4, 6, 8; after the last there is none to prepare."""
    world = make_world(
        make_table([0.0], output=4), FixedTimer(1.0, host_s=2.0), async_scheduling=True, ignore_eos=True
    )
    world.run()
    assert token_times_s(world, 0) == [4.0, 6.0, 8.0, 9.0]


def test_an_arrival_waits_for_a_step_more_when_steps_are_scheduled_ahead():
    """Request 1 comes 0.1 s into a step. Synchronous: it is in the next one. Asynchronous: that one is
    already scheduled, so it is in the one after."""
    table = make_table([0.0, 2.1], output=[10, 1])
    synchronous = make_world(table, FixedTimer(1.0))
    synchronous.run()
    ahead = make_world(table, FixedTimer(1.0), async_scheduling=True)
    ahead.run()
    assert token_times_s(synchronous, 1) == [4.0]
    assert token_times_s(ahead, 1) == [5.0]


def test_the_step_scheduled_ahead_for_an_answer_that_then_ends_is_wasted():
    """The engine does not know that the EOS comes: under asynchronous scheduling it computes one token too
    many."""
    table = make_table([0.0], output=3)
    ends = make_world(table, FixedTimer(1.0), async_scheduling=True)
    ends.run()
    assert token_times_s(ends, 0) == [1.0, 2.0, 3.0]
    assert ends.recorder.steps[0].num_steps == 4
    told = make_world(table, FixedTimer(1.0), async_scheduling=True, ignore_eos=True)
    told.run()
    assert token_times_s(told, 0) == [1.0, 2.0, 3.0]
    assert told.recorder.steps[0].num_steps == 3


def test_two_pipeline_stages_work_on_two_batches_at_once():
    """Both requests' prompts need the whole budget, so they are two batches; each takes 2 s, a stage 1 s."""
    world = make_world(
        make_table([0.0, 0.0], prompt=64, output=1), FixedTimer(2.0, num_stages=2), max_num_batched_tokens=64
    )
    world.run()
    assert step_spans(world) == [(0.0, 2.0), (1.0, 3.0)]


@pytest.mark.parametrize(("version", "in_flight"), [("0.16.0", 2), ("0.33.0", 3)])
def test_a_pipeline_ahead_of_the_gpu_has_one_batch_more_than_stages_in_flight_later(version, in_flight):
    world = make_world(
        make_table([0.0]), FixedTimer(2.0, num_stages=2), async_scheduling=True, release=release(version)
    )
    assert world.replicas[0]._depth == in_flight


def test_two_requests_take_turns_in_two_stages_and_each_token_waits_for_the_one_before():
    """vLLM 0.33.0. A step takes 2 s, a stage 1 s: each has a token every 2 s, 1 s apart."""
    world = make_world(
        make_table([0.0, 0.0], prompt=64, output=3),
        FixedTimer(2.0, num_stages=2),
        max_num_batched_tokens=64,
        async_scheduling=True,
        release=release("0.33.0"),
    )
    world.run()
    assert token_times_s(world, 0) == [2.0, 4.0, 6.0]
    assert token_times_s(world, 1) == [3.0, 5.0, 7.0]


def test_without_spacing_a_batch_with_decodes_waits_for_the_tokens_of_the_one_before():
    """vLLM 0.16.0, the same two. The first decodes beside 63 tokens of the second's prompt, and that batch
    waits for its token: one stage is empty all the time."""
    world = make_world(
        make_table([0.0, 0.0], prompt=64, output=3),
        FixedTimer(2.0, num_stages=2),
        max_num_batched_tokens=64,
        async_scheduling=True,
        release=release("0.16.0"),
    )
    world.run()
    assert token_times_s(world, 0) == [2.0, 4.0, 6.0]
    assert token_times_s(world, 1) == [6.0, 8.0, 10.0]


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_token_comes_sooner_after_the_one_before_than_a_pass_through_all_stages(version, stages):
    world = make_world(
        make_table([0.0, 0.5, 0.5, 3.0, 9.0], prompt=40, output=6),
        FixedTimer(2.0, num_stages=stages),
        max_num_batched_tokens=64,
        async_scheduling=True,
        release=release(version),
    )
    world.run()
    for request in range(5):
        times_s = token_times_s(world, request)
        assert len(times_s) == 6
        assert all(later - sooner >= 2.0 for sooner, later in pairwise(times_s))


def test_a_request_that_arrives_during_a_step_is_not_in_it():
    world = make_world(make_table([0.0, 0.5], output=[3, 1]), FixedTimer(1.0))
    world.run()
    log = world.recorder.requests
    assert log.first_scheduled_s[1] == 1.0
    assert token_times_s(world, 1) == [2.0]


def test_an_idle_engine_sleeps_and_wakes_at_the_arrival():
    world = make_world(make_table([0.0, 10.0, 20.0]), FixedTimer(1.0))
    assert world.run() == 21.0
    assert step_spans(world) == [(0.0, 1.0), (10.0, 11.0), (20.0, 21.0)]


def test_the_front_end_delays_every_request_by_its_time():
    world = make_world(make_table([0.0, 0.0], output=2), FixedTimer(1.0), front_end_s=0.125)
    world.run()
    times = times_of(world)
    assert times.ttft_s.tolist() == [1.125, 1.125]
    assert times.tpot_s.tolist() == [1.0, 1.0]


def test_the_front_end_takes_longer_for_every_stream_in_flight_and_serves_in_order():
    """The third comes when the first has ended: one in flight, but the second is still on its way."""
    table = make_table([0.0, 1.0, 1.5], output=1)
    world = make_world(table, FixedTimer(1.0), front_end_s=0.25, front_end_stream_s=0.5)
    world.run()
    assert world.recorder.requests.first_scheduled_s.tolist() == [0.25, 1.75, 2.75]


def test_the_clock_stops_at_the_horizon_and_says_who_is_in_flight():
    world = make_world(make_table([0.0, 0.0, 9.0], output=[2, 100, 1]), FixedTimer(1.0))
    assert world.run(horizon_s=5.5) == 5.5
    log = world.recorder.requests
    assert list(log.status) == [Status.FINISHED, Status.IN_FLIGHT, Status.NOT_SENT]
    assert token_times_s(world, 1) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert log.output_tokens[1] == 5


def test_a_request_that_the_table_marks_is_rejected_and_serves_nobody():
    world = make_world(make_table([0.0, 0.0], rejected=[0]))
    world.run()
    assert list(world.recorder.requests.status) == [Status.REJECTED, Status.FINISHED]
    assert world.rejections.total() == 1
    assert world.recorder.requests.replica[0] == -1


def test_a_prompt_that_can_never_fit_the_cache_is_refused_with_a_reason():
    """100 tokens need 7 blocks of 16; five blocks hold, without the null block, 64 tokens."""
    world = make_world(make_table([0.0, 0.0], prompt=[100, 10]), num_blocks=5)
    world.run()
    assert list(world.recorder.requests.status) == [Status.REJECTED, Status.FINISHED]
    assert list(world.rejections) == ["prompt and one token exceed the whole KV cache (64 tokens)"]


def test_an_answer_is_cut_where_the_whole_cache_is_full_instead_of_being_preempted_for_ever():
    world = make_world(make_table([0.0], prompt=40, output=1000), num_blocks=5)
    world.run()
    log = world.recorder.requests
    assert log.status[0] == Status.FINISHED
    assert log.output_tokens[0] == 64 - 40
    assert log.num_preemptions[0] == 0
