"""What every figure must say of its run: loop and load, sample, seed, warm-up, release mirrored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sim.scenario.resolve import mirrored

if TYPE_CHECKING:
    from sim.scenario import Scenario

Summary = Mapping[str, object]


def caption(summary: Summary, scenario: Scenario) -> str:
    """Loop and load, sample, seed, warm-up, release and calibration in one line."""
    parts = [
        describe_load(scenario),
        f"n = {summary.get('completed', 0):,} finished requests",
        f"seed {scenario.seed}",
        f"warm-up {scenario.warmup_s:g} s left out" if scenario.warmup_s else "no warm-up removed",
        f"mirrors {mirrored(scenario.engine)}",
        f"calibration {summary.get('calibration_id', 'unknown')}",
    ]
    return "; ".join(parts) + "."


def describe_load(scenario: Scenario) -> str:
    """Open or closed loop, and the rate or the concurrency, in a few words."""
    load = scenario.workload
    if load.kind == "mix":
        return "; ".join(f"{name}: {describe_load(scenario.part(name))}" for name in load.workloads)
    if load.kind == "closed_loop":
        return f"Closed loop, {load.max_concurrency:,} requests in flight"
    cap = f", client keeps at most {load.max_concurrency:,} in flight" if load.max_concurrency else ""
    if load.kind == "burst":
        return f"Open loop, all {load.num_requests:,} requests at t = 0{cap}"
    if load.kind == "trace":
        scaled = f" at {load.rate_per_s:g} req/s" if load.rate_per_s else ""
        return f"Open loop, arrivals of the trace {Path(load.path).name}{scaled}{cap}"
    shape = {"poisson": "Poisson arrivals", "constant": "equal gaps"}.get(load.kind, "gamma arrivals")
    if load.kind == "gamma":
        shape += f" (burstiness {load.burstiness:g})"
    return f"Open loop, {shape} at {load.rate_per_s:g} req/s{cap}"


def describe_system(scenario: Scenario) -> str:
    """Model, GPUs and how they are divided into replicas."""
    cluster, engine = scenario.cluster, scenario.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    shape = f"{cluster.replicas} × (TP {engine.tensor_parallel_size} × PP {engine.pipeline_parallel_size})"
    return f"{scenario.model} on {cluster.replicas * gpus} × {scenario.gpu}, replicas × GPUs: {shape}."
