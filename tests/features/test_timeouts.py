"""Clients that hang up: in every state of their request, counted as aborted, their tokens apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.recorder import Status
from sim.simulation import simulate
from tests.cluster.helpers import make_table, make_world, token_times_s
from tests.features.helpers import make_scenario


def with_patience(table, *, total_s=None, first_token_s=None):
    def column(values):
        return None if values is None else np.array(values, dtype=float)

    return replace(table, timeout_s=column(total_s), first_token_timeout_s=column(first_token_s))


def test_a_client_hangs_up_in_the_middle_of_its_answer():
    """Steps of 1 s, patience 3.5 s: three tokens of nine have come; the fourth, under way, is dropped."""
    world = make_world(with_patience(make_table([0.0], 10, 9), total_s=[3.5]))
    world.run()
    log = world.recorder.requests
    assert log.status[0] == Status.ABORTED
    assert log.output_tokens[0] == 3
    assert token_times_s(world, 0) == [1, 2, 3]
    assert world.replicas[0].num_outstanding == 0
    assert world.replicas[0].engine.kv_cache.num_used_blocks == 0


def test_a_token_that_comes_at_the_last_moment_counts():
    """The answer's end and the end of patience fall on 3 s: the engine comes first."""
    world = make_world(with_patience(make_table([0.0], 10, 3), total_s=[3.0]))
    world.run()
    assert world.recorder.requests.status[0] == Status.FINISHED


def test_patience_for_the_first_token_ends_with_the_first_token():
    """One request runs at a time. The second waits 5 s for the first to end: more than 4.5, less than 6.5."""
    for patience_s, status in ((4.5, Status.ABORTED), (6.5, Status.FINISHED)):
        table = with_patience(make_table([0.0, 0.0], 10, 5), first_token_s=[1.5, patience_s])
        world = make_world(table, max_num_seqs=1)
        world.run()
        assert list(world.recorder.requests.status) == [Status.FINISHED, status]


def test_a_request_that_waits_is_aborted_and_makes_way():
    """Second in line, it gives up at 2.5 s; the third is served after the first instead."""
    table = with_patience(make_table([0.0] * 3, 10, 4), total_s=[np.inf, 2.5, np.inf])
    world = make_world(table, max_num_seqs=1)
    world.run()
    assert token_times_s(world, 1) == []
    assert token_times_s(world, 2) == [5, 6, 7, 8]


def test_a_request_on_its_way_through_the_front_end_never_reaches_the_engine():
    table = with_patience(make_table([0.0, 0.0], 10, 2), total_s=[0.5, np.inf])
    world = make_world(table, front_end_s=1.0)
    world.run()
    assert list(world.recorder.requests.status) == [Status.ABORTED, Status.FINISHED]
    assert np.isnan(world.recorder.requests.first_scheduled_s[0])


def test_a_client_that_hangs_up_frees_its_slot_in_a_closed_loop():
    table = with_patience(make_table([0.0, 0.0], 10, 9), total_s=[2.5, np.inf])
    world = make_world(table, max_concurrency=1)
    world.run()
    assert world.recorder.requests.arrival_s[1] == 2.5


def test_the_patience_of_clients_who_were_served_does_not_prolong_the_run():
    world = make_world(with_patience(make_table([0.0], 10, 3), total_s=[1000.0]))
    assert world.run() == 3.0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hanging_up_amid_preemptions_and_loads_of_work_keeps_every_law(asynchronous):
    """A pool for four of twelve requests, patience from 1 to 40 steps: some wait, some run or stall."""
    rng = np.random.default_rng(5)
    table = with_patience(
        make_table(np.sort(rng.uniform(0, 30, 60)), 30, rng.integers(1, 60, 60)),
        total_s=rng.uniform(1, 40, 60),
        first_token_s=rng.uniform(1, 40, 60),
    )
    world = make_world(
        table, num_blocks=45, block_size=8, async_scheduling=asynchronous, max_num_seqs=12, front_end_s=0.3
    )
    world.run()
    log = world.recorder.requests
    assert set(log.status) == {Status.FINISHED, Status.ABORTED}
    assert world.replicas[0].engine.num_preemptions > 0
    assert world.replicas[0].engine.kv_cache.num_used_blocks == 0
    for request in range(60):
        assert len(token_times_s(world, request)) == log.output_tokens[request]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_plans_of_steady_decode_change_nothing(asynchronous):
    def run(plain):
        rng = np.random.default_rng(6)
        table = with_patience(
            make_table(np.sort(rng.uniform(0, 30, 80)), 30, rng.integers(1, 90, 80)),
            total_s=rng.uniform(1, 60, 80),
        )
        world = make_world(
            table, plain=plain, check=False, async_scheduling=asynchronous, max_num_seqs=12, front_end_s=0.3
        )
        end_s = world.run()
        log = world.recorder.requests
        return end_s, list(log.status), [token_times_s(world, request) for request in range(80)]

    assert run(plain=True) == run(plain=False)


WORKLOAD = {
    "kind": "poisson",
    "rate_per_s": 10,
    "num_requests": 500,
    "lengths": {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 200},
}


def test_tokens_of_aborted_requests_are_counted_apart():
    result = simulate(
        make_scenario({**WORKLOAD, "timeouts": {"total_s": {"kind": "uniform", "range_s": (0.2, 3)}}}),
        check=True,
    )
    summary, requests = result.summary, result.requests
    aborted = requests[requests["status"] == "aborted"]
    assert 0 < len(aborted) < 500
    assert summary["num_aborted"] == summary["failed"] == len(aborted)
    assert summary["aborted_output_tokens"] == aborted["output_tokens"].sum() > 0
    assert summary["total_output_tokens"] == 200 * (500 - len(aborted))
    assert summary["completed"] == 500 - len(aborted)


def test_the_share_that_gives_up_follows_from_the_patience():
    """On an idle GPU every answer takes about the same time T; of clients with exponential patience of mean m
    a share of 1 - exp(-T/m) gives up.
    """
    slow = {**WORKLOAD, "rate_per_s": 0.2, "num_requests": 3000}
    alone = simulate(make_scenario(slow)).requests
    took_s = (alone["last_token_s"] - alone["arrival_s"]).median()
    patient = {**slow, "timeouts": {"total_s": {"kind": "exponential", "mean_s": 2 * float(took_s)}}}
    share = simulate(make_scenario(patient)).summary["num_aborted"] / 3000
    assert share == pytest.approx(1 - np.exp(-0.5), abs=0.03)


def test_aborted_requests_miss_every_slo():
    scenario = make_scenario({**WORKLOAD, "timeouts": {"total_s": 0.01}}, slo={"ttft_p99": "10s"})
    assert simulate(scenario).summary["slo_attainment"] == 0.0


def test_the_same_seed_gives_the_same_run():
    scenario = make_scenario(
        {**WORKLOAD, "timeouts": {"first_token_s": {"kind": "exponential", "mean_s": 0.1}}}
    )
    assert simulate(scenario).requests.equals(simulate(scenario).requests)
