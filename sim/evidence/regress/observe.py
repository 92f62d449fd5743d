"""Runs a set of scenarios and keeps of each what a baseline has: numbers, samples, timeline, fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InputError
from sim.evidence.regress import recorded
from sim.evidence.regress.baseline import METRICS, Observation, Probe
from sim.evidence.regress.layers import probe
from sim.random_streams import streams
from sim.scenario import Scenario, load_scenario, scenario_from_data
from sim.setup import engine_setup
from sim.simulation import RunResult, simulate_workload
from sim.values import finite, plain_json
from sim.workload import Limits, build_workload

if TYPE_CHECKING:
    import pandas as pd

MOST_REQUESTS = 5000
"""A baseline holds every request, so its scenarios are small."""

SAMPLES = 400
"""Latencies kept of each metric: all, or so many evenly spaced ranks."""

MOMENTS = 150
"""Points of a timeline that are kept."""


def observe(
    files: Sequence[Path],
    baseline: Mapping[str, Observation],
    on_done: Callable[[str], None] | None = None,
    *,
    allow_plugins: bool = False,
) -> dict[str, Observation]:
    """By name, what is kept of each scenario now; `files` from `scenario_files`, all faults at once.

    Probes of layers run on what `baseline` recorded of a scenario, if it has it: in `probe_of_baseline`, or
    None where its settings can no longer be read.
    """
    scenarios, faults = [], []
    for file in files:
        try:
            scenario = load_scenario(file)
        except InputError as error:
            faults += error.faults
            continue
        scenarios.append(scenario)
        if scenario.name != file.stem:
            faults.append(scenario.fault("name", f"must be the file's, {file.stem}, or left out"))
    if faults:
        raise InputError(faults)
    found = {}
    for scenario in scenarios:
        found[scenario.name] = observed(scenario, baseline.get(scenario.name), allow_plugins)
        if on_done:
            on_done(scenario.name)
    return found


def observed(scenario: Scenario, base: Observation | None, allow_plugins: bool) -> Observation:
    """What a baseline keeps of one scenario."""
    setup = engine_setup(scenario, allow_plugins=allow_plugins)
    workload = build_workload(scenario, streams(scenario.seed), Limits(setup.replica.scheduler.max_model_len))
    if len(workload.table) > MOST_REQUESTS:
        message = f"has {len(workload.table):,} requests; those of a set have at most {MOST_REQUESTS:,}"
        raise InputError([scenario.fault("workload", message)])
    result = simulate_workload(scenario, setup, workload)
    resolved, requests = result.resolved, recorded.requests_as_json(workload)
    settings = plain_json(resolved.model_dump(mode="json"))
    assert isinstance(settings, dict)
    step_s = _step_s(result) if result.summary["num_steps"] else 0.015625
    of_baseline = None if base is None else _probe_of_baseline(base, allow_plugins)
    if (
        base is None
        or of_baseline is None
        or base["settings"] != settings
        or base["workload"] != requests
        or of_baseline["num_blocks"] != base["probe"]["num_blocks"]
    ):
        own = probe(resolved, recorded.workload_from_json(requests), None, step_s, allow_plugins)
    else:
        own = of_baseline
    return {
        "settings": settings,
        "metrics": {metric.key: _number(result.summary.get(metric.key)) for metric in METRICS},
        "band": result.summary["error_band"],
        "samples_s": _samples(result),
        "timeline": _timeline(result.steps),
        "workload": requests,
        "probe": own,
        "probe_of_baseline": of_baseline,
    }


def _probe_of_baseline(base: Observation, allow_plugins: bool) -> Probe | None:
    """Today's layers on the baseline's own inputs; None where today's code no longer takes its settings."""
    try:
        scenario = scenario_from_data(base["settings"])
        workload, kept = recorded.workload_from_json(base["workload"]), base["probe"]
        return probe(scenario, workload, kept["num_blocks"], kept["step_s"], allow_plugins)
    except InputError:
        return None


def _step_s(result: RunResult) -> float:
    """The mean step of the run as a whole number of 1/4096 s: sums of it are exact."""
    busy_s, steps = float(result.steps["step_time_s"].sum()), len(result.steps)
    return max(1, round(busy_s / steps * 4096)) / 4096


def _samples(result: RunResult) -> dict[str, list[float]]:
    """TTFT, TPOT and E2E (s) of measured requests that finished, sorted, to the microsecond."""
    times = result.times
    found = {}
    for name, values in (("ttft", times.ttft_s), ("tpot", times.tpot_s), ("e2e", times.e2e_s)):
        chosen = np.sort(values[times.done & np.isfinite(values)])
        if len(chosen) > SAMPLES:
            chosen = chosen[np.linspace(0, len(chosen) - 1, SAMPLES).round().astype(np.intp)]
        found[name] = chosen.round(6).tolist()
    return found


def _timeline(steps: pd.DataFrame) -> dict[str, Any]:
    """Where the run began and how long a stretch is (s), and of each stretch of the fleet the mean of running
    and waiting requests and of KV blocks in use, and the preemptions.
    """
    from sim.figures.timeline import fleet_curve, stretches

    if not len(steps):
        return {}
    start_s = float((steps["end_s"] - steps["step_time_s"]).min())
    edges = np.linspace(start_s, float(steps["end_s"].max()), MOMENTS + 1)
    columns: dict[str, Any] = {"start_s": start_s, "stretch_s": float(edges[1] - edges[0])}
    for name, idle in (("num_running", 0.0), ("num_waiting", 0.0), ("kv_used_blocks", None)):
        x, y = fleet_curve(steps, name, idle)
        columns[name] = stretches(x, y, edges)[0].round(2).tolist()
    place = np.clip(np.searchsorted(edges, steps["end_s"].to_numpy(), side="left") - 1, 0, MOMENTS - 1)
    counts = np.bincount(place, weights=steps["num_preemptions"].to_numpy(), minlength=MOMENTS)
    columns["num_preemptions"] = counts.astype(int).tolist()
    return columns


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return finite(value)
