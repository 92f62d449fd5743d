"""Simulate measured runs: each on the engine its row describes, with the requests its client sent.

Runs are independent, so they go to a pool of processes; results come back in the order of the table and are
the same whatever the number of processes. Runs with the same engine and the same requests (twins that were
measured twice) are simulated once.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from cost_models import CostModelError
from sim.cluster.progress import StuckError
from sim.cluster.router import ROUTERS
from sim.cluster.world import World
from sim.engine_setup import engine_setup
from sim.errors import InputError
from sim.evidence.validate.observe import observe
from sim.evidence.validate.replay_prompts import replay_workload
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.scoring import Comparison, compare, is_saturated
from sim.evidence.validate.setup import Setup, build_setup
from sim.evidence.validate.traffic import CannotRunError, Traffic, build_traffic
from sim.evidence.validate.variant import SHIPPED, Variant
from sim.random_streams import streams
from sim.scenario.quantile_grids import grid
from sim.simulation import RunResult

__all__ = ["Job", "Outcome", "replay_all", "simulate_run"]


@dataclass(frozen=True)
class Job:
    """A measured run to simulate; `rows` are its requests where the run itself lists them.

    `variant` is the cost model to simulate it with.
    """

    run: MeasuredRun
    folder: Path
    rows: RequestRows | None = None
    limit: int | None = None
    keep_latencies: bool = False
    variant: Variant = SHIPPED


@dataclass(frozen=True)
class Outcome:
    """What came of a job: what the client would have seen, or the reason why it could not be simulated.

    `latencies` (columns arrival_s, ttft_s, tpot_s, e2e_s) and `measured_rows` only if they were to be kept.
    """

    run: MeasuredRun
    simulated: dict[str, float]
    comparisons: tuple[Comparison, ...]
    assumptions: tuple[str, ...]
    reason: str | None = None
    latencies: pd.DataFrame | None = None
    measured_rows: RequestRows | None = None


def replay_all(
    jobs: Sequence[Job], num_processes: int = 1, on_done: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """The outcome of every job, in order. `on_done` is called with each as it is known."""
    found: dict[int, Outcome] = {}
    twins = _twins(jobs)
    tasks = [[jobs[index] for index in group] for group in twins]

    def take(results: Iterable[list[Outcome]]) -> None:
        for group, outcomes in zip(twins, results, strict=True):
            for index, outcome in zip(group, outcomes, strict=True):
                found[index] = outcome
                if on_done is not None:
                    on_done(outcome)

    if num_processes <= 1:
        take(map(_replay, tasks))
    else:
        with ProcessPoolExecutor(num_processes) as pool:
            take(pool.map(_replay, tasks))
    return [found[index] for index in range(len(jobs))]


def _twins(jobs: Sequence[Job]) -> list[list[int]]:
    """Positions of the jobs, those that make the same simulation together, by the first of each group."""
    groups: dict[object, list[int]] = {}
    for index, job in enumerate(jobs):
        try:
            traffic = _traffic(job)
            key: object = _digest(build_setup(job.run, traffic), traffic)
        except CannotRunError:
            key = index
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _digest(setup: Setup, traffic: Traffic) -> str:
    """Equal for equal engines with equal requests."""
    plain = setup.scenario.model_copy(update={"name": "", "description": ""})
    shared = (setup.engine_side, traffic.max_concurrency, traffic.shared_prefix_tokens)
    digest = hashlib.sha256(f"{plain!r} {shared}".encode())
    lengths = (traffic.prompt_tokens, traffic.output_tokens)
    for column in (traffic.arrival_s, *lengths, traffic.prompt_index, traffic.group_index):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _replay(jobs: Sequence[Job]) -> list[Outcome]:
    """Simulate once for jobs that make the same simulation, and look at it as each one's client would."""
    first = jobs[0]
    try:
        traffic = _traffic(first)
        setup = build_setup(first.run, traffic)
        result = _simulate(setup, traffic, first.variant)
    except CannotRunError as error:
        reason = str(error)
    except InputError as error:
        reason = "; ".join(map(str, error.faults))
    except (CostModelError, StuckError) as error:
        reason = str(error)
    else:
        return [_outcome(job, traffic, setup, result) for job in jobs]
    return [Outcome(job.run, {}, (), (), reason=reason) for job in jobs]


def _outcome(job: Job, traffic: Traffic, setup: Setup, result: RunResult) -> Outcome:
    run = job.run
    simulated, latencies = observe(
        result.requests,
        result.summary,
        client=run.client,
        warmup_s=setup.scenario.warmup_s,
    )
    assumptions = [*build_setup(run, traffic).assumptions, *result.setup.notes]
    if simulated.get("failed"):
        assumptions.append(f"{simulated['failed']:.0f} requests did not finish in the simulation")
    offer_s = float(traffic.arrival_s[-1] - traffic.arrival_s[traffic.num_warmup])
    saturated = is_saturated(run, traffic.num_measured, offer_s)
    compared = compare(run, simulated, condition=_condition(run, traffic), saturated=saturated)
    return Outcome(
        run=run,
        simulated=simulated,
        comparisons=tuple(compared),
        assumptions=tuple(assumptions),
        latencies=latencies if job.keep_latencies else None,
        measured_rows=traffic.measured_rows if job.keep_latencies else None,
    )


def simulate_run(job: Job) -> RunResult:
    """The simulation of a measured run, whole. CannotRunError or InputError where it cannot be had."""
    traffic = _traffic(job)
    return _simulate(build_setup(job.run, traffic), traffic, job.variant, keep_steps=True)


def _simulate(setup: Setup, traffic: Traffic, variant: Variant, *, keep_steps: bool = False) -> RunResult:
    scenario = setup.scenario
    engine = variant.apply(engine_setup(scenario), scenario)
    if setup.engine_side:
        inside = replace(engine.replica, front_end_s=0.0, front_end_stream_s=0.0)
        engine = replace(engine, replica=inside)
    workload = replay_workload(traffic, engine.replica.scheduler.max_model_len)
    world = World(
        workload,
        engine.replica,
        ROUTERS[scenario.cluster.router.kind](streams(scenario.seed)("routing")),
        num_replicas=scenario.cluster.replicas,
        keep_steps=keep_steps,
        warmup_s=scenario.warmup_s,
    )
    clock_s = world.run(None, None)
    if world.stuck is not None:
        raise world.stuck
    return RunResult(scenario, engine, workload, world, clock_s)


def _traffic(job: Job) -> Traffic:
    """Drawn from the run's own name, so that it is the same in whatever company the run is simulated."""
    rng = np.random.default_rng(zlib.crc32(job.run.run_id.encode()))
    return build_traffic(job.run, job.folder, rng, length_quantiles, job.limit, job.rows)


def length_quantiles(side: str, name: str) -> tuple[Sequence[float], Sequence[float]]:
    """Shipped length quantiles of a dataset: percentiles, and "prompt" or "output" tokens at each."""
    known = grid(name)
    return list(100.0 * known.probabilities), list(known.prompt if side == "prompt" else known.output)


def _condition(run: MeasuredRun, traffic: Traffic) -> str:
    """Equal for runs that offered the very same requests to the same engine: repeats of one condition."""
    if run.load != "trace":
        return run.run_id
    digest = hashlib.sha256(f"{run.source} {run.gpu} {run.model} {run.tp} {run.pp}".encode())
    for column in (traffic.arrival_s.round(3), traffic.prompt_tokens, traffic.output_tokens):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:12]
