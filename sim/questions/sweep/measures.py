"""The numbers of a sweep's tables: what a row takes from the summary of its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, isnan, nan

import numpy as np

from sim.statistics.intervals import (
    Interval,
    Trust,
    replication_interval,
    trust_in_percentile,
    wilson_interval,
)
from sim.statistics.paired import LEAST_DISTINCT
from sim.statistics.series import two_stage_interval
from sim.values import Json

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
_PERCENTS = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}

SUMMARY_KEYS = (
    "request_throughput",
    "request_goodput",
    "slo_attainment",
    "output_throughput",
    "total_token_throughput",
    "output_throughput_per_gpu",
    *(f"{statistic}_{metric}_ms" for metric in LATENCIES for statistic in STATISTICS),
    "num_preemptions",
    "recomputed_token_share",
    "kv_usage_p50",
    "kv_usage_p95",
    "kv_usage_max",
    "num_running_p50",
    "num_running_p95",
    "num_running_max",
    "prefix_cache_hit_rate",
    "busy_share",
    "max_concurrent_requests",
    "num_gpu_blocks",
    "num_gpus",
    "completed",
    "failed",
    "duration",
)
"""Keys of `summary.json` that become columns of the same name."""

COUNTED = ("slo_judged_requests",)
"""Further columns: how many requests the shares are of."""


def measures(summary: Mapping[str, Json]) -> dict[str, float]:
    """One run's numbers by column; NaN where the summary has none, or too few values for a percentile.

    Beside the keys of the summary: `attainment_<target>` for each SLO target, `preemptions_per_request`, and
    `tokens_per_s_per_user`, 1 / mean TPOT.
    """
    found = {key: number(summary.get(key)) for key in (*SUMMARY_KEYS, *COUNTED)}
    completed = int(found["completed"])
    for statistic, percent in _PERCENTS.items():
        if trust_in_percentile(completed, percent) is Trust.NONE:
            found |= dict.fromkeys((f"{statistic}_{m}_ms" for m in ("ttft", "tpot", "e2el")), nan)
    targets = summary.get("slo")
    for key, target in (targets if isinstance(targets, Mapping) else {}).items():
        found[attainment_column(key)] = number(target["attainment"])  # type: ignore[index,call-overload]
    requests = number(summary.get("num_requests"))
    found["preemptions_per_request"] = found["num_preemptions"] / requests if requests else nan
    tpot_ms = found["mean_tpot_ms"]
    found["tokens_per_s_per_user"] = 1000.0 / tpot_ms if tpot_ms else nan
    return found


def attainment_column(target: str) -> str:
    """The column of the share of requests that met one target alone, such as `ttft_p99`."""
    return f"attainment_{target}"


def is_share(column: str) -> bool:
    """Whether a column counts requests that met a promise: its values lie in 0…1."""
    return column == "slo_attainment" or column.startswith("attainment_")


def seeds_change_nothing(runs: Sequence[Mapping[str, float]]) -> bool:
    """Whether runs under several seeds have the same numbers throughout: then nothing is left to chance."""

    def told(row: Mapping[str, float]) -> dict[str, float]:
        return {column: value for column, value in row.items() if not isnan(value)}

    return len(runs) > 1 and all(told(row) == told(runs[0]) for row in runs[1:])


def thin_percentiles(summaries: Iterable[Mapping[str, Json]]) -> list[str]:
    """Percentiles with fewer than ten samples above in any of the runs."""
    found: dict[str, None] = {}
    for summary in summaries:
        thin = summary.get("thin_percentiles")
        assert isinstance(thin, list)
        found |= dict.fromkeys(map(str, thin))
    return list(found)


def number(value: Json) -> float:
    """A number of a summary as a float; NaN for null."""
    return float(value) if isinstance(value, (int, float)) else nan


def interval_of(column: str, numbers: Sequence[Mapping[str, float]], first_stage: int | None) -> Interval:
    """The interval of one number over the replications of a cell.

    Shares of requests are cut at 0 and 1. Where they take fewer than three different values over the seeds,
    which few requests do by luck, the interval is at least Wilson's of all requests; none, as that of any
    other number, where seeds change nothing.
    """
    values = [row[column] for row in numbers]
    found = replication_interval(values) if first_stage is None else two_stage_interval(values, first_stage)
    if not is_share(column) or not isfinite(found.estimate):
        return found
    low, high = found.low, found.high
    alike = len(set(values)) < LEAST_DISTINCT if len(values) > 1 else values[0] in (0.0, 1.0)
    if alike and not seeds_change_nothing(numbers):
        judged = int(sum(row["slo_judged_requests"] for row in numbers))
        of_all = wilson_interval(round(found.estimate * judged), judged)
        low, high = float(np.fmin(low, of_all.low)), float(np.fmax(high, of_all.high))
    return Interval(found.estimate, _within(low), _within(high), found.size)


def _within(share: float) -> float:
    """Cut at 0 and 1; NaN stays."""
    return share if isnan(share) else min(1.0, max(0.0, share))
