"""Comparison by client class: how each fares under each variant, who starves, and Jain's index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

import pandas as pd

from sim.jobs.points import Outcome
from sim.questions.sweep.measures import number
from sim.statistics.intervals import replication_interval
from sim.statistics.paired import PairedDifferences

STARVING_S = 60.0

_COLUMNS = {
    "median_ttft_s": ("median_ttft_ms", 1e-3),
    "p99_ttft_s": ("p99_ttft_ms", 1e-3),
    "p99_tpot_ms": ("p99_tpot_ms", 1.0),
    "p99_e2e_s": ("p99_e2el_ms", 1e-3),
    "attainment": ("slo_attainment", 1.0),
    "max_wait_s": ("max_wait_s", 1.0),
    "preemptions": ("num_preemptions", 1.0),
    "token_share": ("token_share", 1.0),
    "requests": ("num_requests", 1.0),
}


def class_table(
    labels: Sequence[str], runs: Sequence[Sequence[Outcome]], starving_s: float = STARVING_S
) -> pd.DataFrame:
    """One row for each variant and class: means over seeds, `<number>_low` and `…_high` (95 %), `starves`.

    `max_wait_s` is the mean over seeds of the longest wait for a first scheduling; a class starves whose wait
    exceeds `starving_s`. `p99_ttft_s_difference` with its ends compares with the first variant, seed by seed.
    Empty without classes.
    """
    rows = []
    reference: dict[str, list[float]] = {}
    for label, outcomes in zip(labels, runs, strict=True):
        for name, found in _by_class(outcomes).items():
            row: dict[str, object] = {"variant": label, "class": name}
            for column, (key, factor) in _COLUMNS.items():
                interval = replication_interval([factor * number(each.get(key)) for each in found])  # type: ignore[arg-type]
                row |= {column: interval.estimate, f"{column}_low": interval.low}
                row[f"{column}_high"] = interval.high
            tails = [1e-3 * number(each.get("p99_ttft_ms")) for each in found]  # type: ignore[arg-type]
            first = reference.setdefault(name, tails)
            if first is not tails and len(first) == len(tails):
                paired = PairedDifferences.of(first, tails).interval()
                row |= {"p99_ttft_s_difference": paired.estimate, "p99_ttft_s_difference_low": paired.low}
                row["p99_ttft_s_difference_high"] = paired.high
            wait = row["max_wait_s"]
            row["starves"] = isinstance(wait, float) and wait > starving_s
            rows.append(row)
    return pd.DataFrame(rows)


def _by_class(outcomes: Sequence[Outcome]) -> dict[str, list[Mapping[str, object]]]:
    found: dict[str, list[Mapping[str, object]]] = {}
    for outcome in outcomes:
        classes = (outcome.summary or {}).get("classes")
        for name, row in (classes if isinstance(classes, Mapping) else {}).items():
            assert isinstance(row, Mapping)
            found.setdefault(name, []).append(row)
    return found


def jain(outcomes: Sequence[Outcome]) -> list[float]:
    """Jain's index of the classes' speeds in each run; empty without classes."""
    values = [number((outcome.summary or {}).get("class_jain_index")) for outcome in outcomes]
    return values if any(value == value for value in values) else []


def mean_jain(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Its mean over runs with the ends of the 95 % interval; NaN without classes."""
    values = jain(outcomes)
    found = replication_interval(values) if values else None
    return (nan, nan, nan) if found is None else (found.estimate, found.low, found.high)
