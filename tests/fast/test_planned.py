"""Planned steps are the single steps: every record of a run is the same to the last bit, planned or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings

from cost_models import Deployment, StepCostModel, StepShape
from scheduler import KVCacheConfig, Request, SchedulerConfig
from scheduler.release import release
from sim.cluster.clock import Alarm, Clock
from sim.cluster.planned import PlannedReplica
from sim.cluster.replica import Replica
from sim.cluster.replica_spec import ReplicaSpec
from sim.cluster.router import ROUTERS, Router
from sim.cluster.world import World
from sim.workload import Workload
from tests.cluster.helpers import FixedTimer, make_table


class LeastUsed:
    """A router that looks into the engines: fewest waiting, then running, then blocks in use."""

    def choose(self, request: Request, replicas: Sequence[Any]) -> int:
        def load(index: int) -> tuple[int, int, int, int]:
            engine = replicas[index].engine
            known = sum(r.num_computed_tokens for r in engine.running)
            return (engine.num_waiting, engine.num_running, engine.kv_cache.num_used_blocks, known)

        return min(range(len(replicas)), key=load)


def both(make: Callable[[bool], World], horizon_s: float | None = None) -> None:
    """Run a world in both ways and compare everything it leaves behind."""
    worlds = [make(plain) for plain in (True, False)]
    assert type(worlds[0].replicas[0]) is Replica
    assert type(worlds[1].replicas[0]) is PlannedReplica
    clocks = [world.run(horizon_s) for world in worlds]
    assert clocks[0] == clocks[1]
    for one, two in zip(*(world.recorder.steps for world in worlds), strict=True):
        for plain, planned in zip(one.kept(), two.kept(), strict=True):
            np.testing.assert_array_equal(plain, planned)
    log, planned_log = (world.recorder.requests for world in worlds)
    for name in (name for name in dir(log) if not name.startswith("_")):
        np.testing.assert_array_equal(getattr(log, name), getattr(planned_log, name), err_msg=name)
    for plain, planned in zip(*(world.recorder.token_times() for world in worlds), strict=True):
        np.testing.assert_array_equal(plain, planned)
    for one, two in zip(*([replica.engine for replica in world.replicas] for world in worlds), strict=True):
        assert list(one.kv_cache.pool.free_queue) == list(two.kv_cache.pool.free_queue)
        assert one.kv_cache.pool.key_of_block == two.kv_cache.pool.key_of_block
        assert one.prefix_cache_stats == two.prefix_cache_stats
        assert one.kv_cache.num_evictions == two.kv_cache.num_evictions


def lengths(seed: int, n: int) -> dict[str, Sequence[int]]:
    rng = np.random.default_rng(seed)
    return {"prompt": rng.integers(1, 90, n).tolist(), "output": rng.integers(1, 60, n).tolist()}


def uneven(shape: StepShape) -> float:
    """Step times whose sums round: what a real model gives."""
    return 0.0071 + 0.00013 * shape.num_tokens + 1.7e-6 * shape.decode_context_tokens


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1 << 30),
    n=st.integers(1, 40),
    gap_s=st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]),
    ticks=st.booleans(),
    even=st.booleans(),
    host_s=st.sampled_from([0.0, 0.003, 0.03]),
    stages=st.sampled_from([1, 1, 1, 2, 3, 4, 6]),
    longest=st.sampled_from([97, 110, 200]),
    ahead=st.booleans(),
    front_end_s=st.sampled_from([0.0, 0.0, 0.013]),
    max_concurrency=st.sampled_from([None, None, 1, 7]),
    num_replicas=st.sampled_from([1, 2, 3]),
    router=st.sampled_from([*ROUTERS, "looks"]),
    num_blocks=st.sampled_from([14, 24, 60, 400]),
    seqs=st.sampled_from([2, 8, 64]),
    budget=st.sampled_from([16, 64, 2048]),
    ignore_eos=st.booleans(),
    horizon_s=st.sampled_from([None, None, 0.5, 3.0]),
    patience_s=st.sampled_from([None, 0.3, 1.0]),
    pauses=st.booleans(),
    version=st.sampled_from(["0.16.0", "0.33.0"]),
)
# a pause lets a pipeline run empty amid steady decode
@example(
    seed=70468,
    n=9,
    gap_s=0.01,
    ahead=True,
    num_replicas=3,
    num_blocks=24,
    seqs=8,
    budget=16,
    horizon_s=3.0,
    ticks=False,
    even=False,
    host_s=0.0,
    stages=1,
    longest=200,
    front_end_s=0.0,
    max_concurrency=7,
    ignore_eos=False,
    patience_s=0.3,
    pauses=True,
    router="round_robin",
    version="0.16.0",
)
# nobody's first step ends before the clients hang up
@example(
    seed=70228,
    n=1,
    gap_s=0.5,
    ahead=False,
    num_replicas=2,
    num_blocks=24,
    seqs=64,
    budget=2048,
    horizon_s=None,
    ticks=False,
    even=False,
    host_s=0.0,
    stages=1,
    longest=200,
    front_end_s=0.0,
    max_concurrency=7,
    ignore_eos=False,
    patience_s=0.3,
    pauses=True,
    router="round_robin",
    version="0.16.0",
)
def test_random_worlds_leave_the_same_records(
    seed: int,
    n: int,
    gap_s: float,
    ticks: bool,
    even: bool,
    host_s: float,
    stages: int,
    longest: int,
    ahead: bool,
    front_end_s: float,
    max_concurrency: int | None,
    num_replicas: int,
    router: str,
    num_blocks: int,
    seqs: int,
    budget: int,
    ignore_eos: bool,
    horizon_s: float | None,
    patience_s: float | None,
    pauses: bool,
    version: str,
) -> None:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0, n)) * gap_s
    if ticks:  # arrivals and steps then fall on the same moments
        arrivals = np.round(arrivals / 0.125) * 0.125
    table = make_table(arrivals.tolist(), **lengths(seed, n))
    if patience_s is not None:  # clients hang up in the middle of steady decode
        table = replace(table, timeout_s=rng.exponential(patience_s, n))
    pause_events = ((0.21, 1), (0.4, 2), (0.75, 0)) if pauses else ()

    def make(plain: bool) -> World:
        timer = FixedTimer(0.125 if even else uneven, host_s, num_stages=stages)
        config = SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=longest,
            async_scheduling=ahead,
            pipeline_parallel_size=stages,
        )
        spec = ReplicaSpec(
            config,
            KVCacheConfig(num_blocks, 16),
            timer,
            release(version),
            front_end_s=front_end_s,
            front_end_stream_s=front_end_s / 7,
            pause_events=pause_events,
        )
        workload = Workload(
            table,
            "open" if max_concurrency is None else "closed",
            max_concurrency=max_concurrency,
            ignore_eos=ignore_eos,
        )
        routing: Router = LeastUsed() if router == "looks" else ROUTERS[router](np.random.default_rng(seed))
        return World(workload, spec, routing, num_replicas=num_replicas, plain=plain)

    both(make, horizon_s)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_real_cost_model_gives_the_same_records(ahead: bool) -> None:
    rng = np.random.default_rng(1)
    n = 150
    table = make_table(
        np.cumsum(rng.exponential(0.1, n)).tolist(),
        prompt=rng.integers(4, 900, n).tolist(),
        output=rng.integers(2, 300, n).tolist(),
    )
    timer = StepCostModel(Deployment.of("meta-llama/Llama-3.1-8B", "h100-sxm", async_scheduling=ahead))
    config = SchedulerConfig(max_model_len=4096, async_scheduling=ahead)

    def make(plain: bool) -> World:
        spec = ReplicaSpec(config, KVCacheConfig(900, 16), timer, front_end_s=0.0123)
        return World(Workload(table), spec, ROUTERS["round_robin"](rng), plain=plain)

    both(make)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_answers_that_fill_the_model_length_end_alike_with_any_number_of_steps_in_flight(
    stages: int, ignore_eos: bool
) -> None:
    table = make_table([0.0] * 12, prompt=1, output=range(99, 111))
    config = SchedulerConfig(max_model_len=110, async_scheduling=True, pipeline_parallel_size=stages)

    def make(plain: bool) -> World:
        spec = ReplicaSpec(config, KVCacheConfig(200, 16), FixedTimer(uneven, num_stages=stages))
        workload = Workload(table, ignore_eos=ignore_eos)
        return World(workload, spec, ROUTERS["round_robin"](np.random.default_rng(0)), plain=plain)

    both(make)


def test_steady_decode_costs_few_events() -> None:
    """One request of a thousand tokens: a sleep for every so many steps, not for each."""
    world = World(
        Workload(make_table([0.0], output=1000)),
        ReplicaSpec(SchedulerConfig(max_model_len=2000), KVCacheConfig(200, 16), FixedTimer(1.0)),
        ROUTERS["round_robin"](np.random.default_rng(0)),
    )
    assert world.run() == 1000.0
    assert world.recorder.steps[0].num_steps == 1000
    assert next(world._env._eid) < 50


def test_a_sleep_can_end_at_a_time_that_no_delay_gives() -> None:
    """From 0.02439 every delay leads to half a unit in the last place, and such sums round to even."""
    now, at = 0.024390000000000002, 0.10806150000000002
    delay = at - now
    assert now + np.nextafter(delay, 0) < at < now + np.nextafter(delay, 1)
    assert now + delay != at
    clock = Clock(now)
    clock.run(Alarm(clock, at))
    assert clock.now == at
