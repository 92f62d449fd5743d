"""Runs of two configurations under the same seeds: paired differences with intervals, and what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import pandas as pd

from sim.jobs.points import Outcome
from sim.questions.sweep.measures import measures
from sim.statistics.intervals import LEVEL, Interval, paired_difference, replication_interval


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is compared: its column, its name and unit on the screen, and the factor between them."""

    column: str
    name: str
    factor: float = 1.0


METRICS = (
    Metric("median_ttft_ms", "p50 TTFT (ms)"),
    Metric("p99_ttft_ms", "p99 TTFT (ms)"),
    Metric("median_tpot_ms", "p50 TPOT (ms)"),
    Metric("p99_tpot_ms", "p99 TPOT (ms)"),
    Metric("median_itl_ms", "p50 ITL (ms)"),
    Metric("p99_itl_ms", "p99 ITL (ms)"),
    Metric("median_e2el_ms", "p50 E2E (s)", 1e-3),
    Metric("p99_e2el_ms", "p99 E2E (s)", 1e-3),
    Metric("request_throughput", "requests/s"),
    Metric("output_throughput", "output tokens/s"),
    Metric("request_goodput", "goodput (req/s)"),
    Metric("slo_attainment", "SLO attainment (%)", 100.0),
    Metric("num_preemptions", "preemptions"),
    Metric("recomputed_token_share", "recomputed (%)", 100.0),
    Metric("kv_usage_p95", "KV p95 (%)", 100.0),
    Metric("prefix_cache_hit_rate", "prefix hits (%)", 100.0),
)

SHOWN, SHOWN_ALONE, NOT_SHOWN, UNKNOWN = "shown", "shown alone", "no difference shown", "-"
"""Verdicts. `SHOWN` also among all comparisons made (Bonferroni), `SHOWN_ALONE` at 95 % taken by itself."""


def values_of(outcomes: Sequence[Outcome]) -> list[dict[str, float]]:
    """The numbers of each run, in the order of seeds."""
    return [measures(outcome.summary) for outcome in outcomes if outcome.summary is not None]


def difference_table(labels: Sequence[str], runs: Sequence[Sequence[Mapping[str, float]]]) -> pd.DataFrame:
    """One row for each metric and variant: its mean, and how it differs from the first variant, seed by seed.

    `difference` with `low` and `high` (95 %), `relative` and its ends over the reference's mean, `verdict`.
    The verdict minds that several comparisons are made: with m of them, `shown` takes the interval at
    1 − 0.05/m (Bonferroni). Metrics that no run has, or that are 0 in all, are left out.
    """
    chosen = [m for m in METRICS if any(_is_told(row.get(m.column, nan)) for run in runs for row in run)]
    comparisons = len(chosen) * (len(runs) - 1)
    rows = []
    for metric in chosen:
        columns = [[metric.factor * row.get(metric.column, nan) for row in run] for run in runs]
        reference = replication_interval(columns[0])
        for label, values in zip(labels, columns, strict=True):
            mean = replication_interval(values)
            row: dict[str, object] = {"metric": metric.name, "column": metric.column, "variant": label}
            row |= {"mean": mean.estimate, "mean_low": mean.low, "mean_high": mean.high}
            if values is not columns[0]:
                row |= _compared(columns[0], values, reference.estimate, comparisons)
            rows.append(row)
    return pd.DataFrame(rows)


def _is_told(value: float) -> bool:
    return isfinite(value) and value != 0.0


def _compared(
    reference: Sequence[float], values: Sequence[float], mean: float, comparisons: int
) -> dict[str, object]:
    found = paired_difference(reference, values)
    strict = paired_difference(reference, values, 1.0 - (1.0 - LEVEL) / comparisons)
    row: dict[str, object] = {"difference": found.estimate, "low": found.low, "high": found.high}
    scale = abs(mean) if mean else nan
    row |= {"relative": found.estimate / scale, "relative_low": found.low / scale}
    return row | {"relative_high": found.high / scale, "verdict": verdict(found, strict)}


def verdict(found: Interval, strict: Interval) -> str:
    """What an interval shows, alone and beside all the others."""
    if not isfinite(found.estimate) or not isfinite(found.low):
        return UNKNOWN
    if strict.is_above_or_below_zero:
        return SHOWN
    return SHOWN_ALONE if found.is_above_or_below_zero else NOT_SHOWN
