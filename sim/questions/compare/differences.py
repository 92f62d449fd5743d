"""Runs of two configurations under the same seeds: paired differences with intervals, and what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import pandas as pd

from sim.jobs.points import Outcome
from sim.questions.sweep.measures import measures, seeds_change_nothing
from sim.statistics.intervals import LEVEL, replication_interval
from sim.statistics.paired import PairedDifferences


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

SHOWN, SHOWN_ALONE, NOT_SHOWN = "shown", "shown alone", "no difference shown"
EXACT, TOO_FEW, UNKNOWN = "exact", "too few seeds", "-"
"""Verdicts. `SHOWN` also among all comparisons made (Bonferroni), `SHOWN_ALONE` at 95 % taken by itself.

`EXACT`: seeds change nothing in any run, so that a difference is no matter of chance. `TOO_FEW`: all seeds
agree on the direction, but give fewer than three different differences, which have no interval, and are too
few to show one by their agreement (see `sim.statistics.paired`). `UNKNOWN`: one seed, or a number that some
run lacks.
"""
DIFFERS = (SHOWN, SHOWN_ALONE, EXACT)


def values_of(outcomes: Sequence[Outcome]) -> list[dict[str, float]]:
    """The numbers of each run, in the order of seeds."""
    return [measures(outcome.summary) for outcome in outcomes if outcome.summary is not None]


def difference_table(labels: Sequence[str], runs: Sequence[Sequence[Mapping[str, float]]]) -> pd.DataFrame:
    """One row for each metric and variant: its mean, and how it differs from the first variant, seed by seed.

    `difference` with `low` and `high` (95 %), `relative` and its ends over the reference's mean, `evidence`
    (what it rests on, in words) and `verdict`. The verdict minds that several comparisons are made: with m of
    them, `shown` takes 1 − 0.05/m (Bonferroni). Metrics that no run has, or that are 0 in all, are left out.
    """
    chosen = [m for m in METRICS if any(_is_told(row.get(m.column, nan)) for run in runs for row in run)]
    comparisons = len(chosen) * (len(runs) - 1)
    is_exact = all(seeds_change_nothing(run) for run in runs)
    rows = []
    for metric in chosen:
        columns = [[metric.factor * row.get(metric.column, nan) for row in run] for run in runs]
        reference = replication_interval(columns[0])
        for label, values in zip(labels, columns, strict=True):
            mean = replication_interval(values)
            row: dict[str, object] = {"metric": metric.name, "column": metric.column, "variant": label}
            row |= {"mean": mean.estimate, "mean_low": mean.low, "mean_high": mean.high}
            if values is not columns[0]:
                found = PairedDifferences.of(columns[0], values)
                row |= _compared(found, reference.estimate)
                row |= {"evidence": evidence(found), "verdict": verdict(found, comparisons, is_exact)}
            rows.append(row)
    return pd.DataFrame(rows)


def _is_told(value: float) -> bool:
    return isfinite(value) and value != 0.0


def _compared(found: PairedDifferences, mean: float) -> dict[str, object]:
    interval, scale = found.interval(), abs(mean) if mean else nan
    ends = {"difference": interval.estimate, "low": interval.low, "high": interval.high}
    relative = {"relative": interval.estimate, "relative_low": interval.low, "relative_high": interval.high}
    return {**ends, **{name: value / scale for name, value in relative.items()}}


def verdict(found: PairedDifferences, comparisons: int, is_exact: bool = False) -> str:
    """What differences show, alone and beside all `comparisons` that are made."""
    interval = found.interval()
    if not isfinite(interval.estimate) or len(found.values) < 2:
        return UNKNOWN
    if not found.lower + found.higher:
        return NOT_SHOWN
    if is_exact:
        return EXACT
    if found.shows(strict_level(comparisons)):
        return SHOWN
    if found.shows():
        return SHOWN_ALONE
    agree = len(found.values) in (found.lower, found.higher)
    return TOO_FEW if agree and not isfinite(interval.low) else NOT_SHOWN


def strict_level(comparisons: int) -> float:
    """The level at which each of so many comparisons is judged beside the others (Bonferroni)."""
    return 1.0 - (1.0 - LEVEL) / comparisons


def evidence(found: PairedDifferences) -> str:
    """What differences rest on, in words; empty where some number is missing."""
    interval, count = found.interval(), len(found.values)
    if not isfinite(interval.estimate):
        return ""
    if isfinite(interval.low):
        return f"{LEVEL:.0%} interval"
    if count == 1:
        return "one run: no interval"
    if found.num_distinct == 1:
        return f"the same in each of {count} seeds"
    agree, way = max((found.lower, "lower"), (found.higher, "higher"))
    return f"{way} in {agree} of {count} seeds"
