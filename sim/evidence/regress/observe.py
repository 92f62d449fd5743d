"""Runs a set of scenarios and keeps of each what a baseline has: numbers, samples, timeline, fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.engine_setup import engine_setup
from sim.errors import InputError
from sim.evidence.regress import recorded
from sim.evidence.regress.layers import probe
from sim.random_streams import streams
from sim.scenario import Scenario, load_scenario, scenario_from_data
from sim.simulation import RunResult, simulate_workload
from sim.workload import Limits, build_workload

if TYPE_CHECKING:
    import pandas as pd

Json = dict[str, Any]

MOST_REQUESTS = 5000
"""A baseline holds every request, so its scenarios are small."""

SAMPLES = 400
"""Latencies kept of each metric: all, or so many evenly spaced ranks."""

MOMENTS = 150
"""Points of a timeline that are kept."""

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is compared: its key in `summary.json`, its name, and the error band it is held to."""

    key: str
    name: str
    band: str | None = None


def _metrics() -> tuple[Metric, ...]:
    bands = {"ttft": "ttft_mean", "tpot": "tpot_mean", "e2el": "e2e_mean"}
    tails = {"ttft": "ttft_p99", "e2el": "e2e_p99"}
    found = [
        Metric("completed", "requests completed"),
        Metric("failed", "requests failed"),
        Metric("duration", "duration (s)"),
        Metric("output_throughput", "output tokens/s", "out_tput_tok_s"),
        Metric("request_goodput", "goodput (req/s)"),
        Metric("slo_attainment", "SLO attainment"),
    ]
    for key, name in LATENCIES:
        for column in ("mean", "median", "p90", "p99"):
            band = (tails if column == "p99" else bands).get(key)
            found.append(
                Metric(f"{column}_{key}_ms", f"{'p50' if column == 'median' else column} {name} (ms)", band)
            )
    return (
        *found,
        Metric("num_steps", "steps"),
        Metric("num_gpu_blocks", "KV blocks"),
        Metric("kv_usage_p50", "p50 KV usage"),
        Metric("kv_usage_p95", "p95 KV usage"),
        Metric("num_preemptions", "preemptions"),
        Metric("recomputed_token_share", "preemption tax"),
        Metric("prefix_cache_hit_rate", "prefix cache hit rate"),
        Metric("busy_share", "GPUs at work"),
    )


METRICS = _metrics()


def observe(
    files: Sequence[Path],
    baseline: Mapping[str, Json],
    on_done: Callable[[str], None] | None = None,
    *,
    allow_plugins: bool = False,
) -> dict[str, Json]:
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


def observed(scenario: Scenario, base: Json | None, allow_plugins: bool) -> Json:
    """What a baseline keeps of one scenario."""
    setup = engine_setup(scenario, allow_plugins=allow_plugins)
    workload = build_workload(scenario, streams(scenario.seed), Limits(setup.replica.scheduler.max_model_len))
    if len(workload.table) > MOST_REQUESTS:
        message = f"has {len(workload.table):,} requests; those of a set have at most {MOST_REQUESTS:,}"
        raise InputError([scenario.fault("workload", message)])
    result = simulate_workload(scenario, setup, workload)
    resolved, requests = result.resolved, recorded.as_json(workload)
    steps = result.summary["num_steps"]
    own: Json = {
        "settings": _plain(resolved.model_dump(mode="json")),
        "metrics": {metric.key: _number(result.summary.get(metric.key)) for metric in METRICS},
        "band": result.summary["error_band"],
        "samples_s": _samples(result),
        "timeline": _timeline(result.steps),
        "workload": requests,
    }
    step_s = _step_s(result) if steps else 0.015625
    told = None if base is None else _probe_of(base, allow_plugins)
    own["probe_of_baseline"] = own["probe"] = told
    if (
        base is None
        or told is None
        or base["settings"] != own["settings"]
        or base["workload"] != requests
        or told["num_blocks"] != base["probe"]["num_blocks"]
    ):
        own["probe"] = probe(resolved, recorded.from_json(requests), None, step_s, allow_plugins)
    return own


def _probe_of(base: Json, allow_plugins: bool) -> Json | None:
    """The probes of the baseline's own inputs; None where today's code no longer takes its settings."""
    try:
        scenario = scenario_from_data(_as_read(base["settings"]))
        workload, kept = recorded.from_json(base["workload"]), base["probe"]
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


def _timeline(steps: pd.DataFrame) -> Json:
    """Where the run began and how long a stretch is (s), and of each stretch of the fleet the mean of running
    and waiting requests and of KV blocks in use, and the preemptions.
    """
    from sim.figures.timeline import fleet_curve, stretches

    if not len(steps):
        return {}
    start_s = float((steps["t_s"] - steps["step_time_s"]).min())
    edges = np.linspace(start_s, float(steps["t_s"].max()), MOMENTS + 1)
    columns: Json = {"start_s": start_s, "stretch_s": float(edges[1] - edges[0])}
    for name, idle in (("num_running", 0.0), ("num_waiting", 0.0), ("kv_used_blocks", None)):
        x, y = fleet_curve(steps, name, idle)
        columns[name] = stretches(x, y, edges)[0].round(2).tolist()
    place = np.clip(np.searchsorted(edges, steps["t_s"].to_numpy(), side="left") - 1, 0, MOMENTS - 1)
    counts = np.bincount(place, weights=steps["num_preemptions"].to_numpy(), minlength=MOMENTS)
    columns["num_preemptions"] = counts.astype(int).tolist()
    return columns


def _number(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isfinite(value) else None


def _plain(value: object) -> Any:
    """As JSON would give it back."""
    import json

    return json.loads(json.dumps(value))


def _as_read(value: Any) -> Any:
    """As the reader of scenario files gives it: lists are tuples."""
    if isinstance(value, dict):
        return {key: _as_read(inner) for key, inner in value.items()}
    return tuple(map(_as_read, value)) if isinstance(value, list) else value
