"""What came of a comparison: runs paired by seed, what their differences show, and how each class fares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import pandas as pd

from sim.jobs.points import Outcome
from sim.questions.compare.variants import Variant
from sim.questions.sweep.measures import measures, number, seeds_change_nothing
from sim.scenario import Scenario
from sim.statistics.intervals import LEVEL, Interval, replication_interval
from sim.statistics.paired import PairedDifferences
from sim.values import Json

STARVING_S = 60.0
_WHO = ("mirrors", "notes")
"""What a summary says of who decided and what to know of it."""
LONG = 24
"""A longer label has a letter in its place in tables."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is compared: its column, its name and unit in tables, and the factor between them."""

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

_CLASS_COLUMNS = {
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

SHOWN, SHOWN_ALONE, NOT_SHOWN = "shown", "shown alone", "no difference shown"
EXACT, TOO_FEW, UNKNOWN = "exact", "too few seeds", "-"
"""Verdicts. `SHOWN` also among all comparisons made (Bonferroni), `SHOWN_ALONE` at 95 % taken by itself.

`EXACT`: seeds change nothing in any run, so that a difference is no matter of chance. `TOO_FEW`: all seeds
agree on the direction, but give fewer than three different differences, which have no interval, and are too
few to show one by their agreement (see `sim.statistics.paired`). `UNKNOWN`: one seed, or a number that some
run lacks.
"""
DIFFERS = (SHOWN, SHOWN_ALONE, EXACT)


@dataclass(frozen=True, slots=True, repr=False)
class Results:
    """What came of a comparison.

    `table` has a row for each metric and variant (see `difference_table`), `classes` one for each variant and
    client class (see `class_table`), `runs` the outcomes of each variant in the order of `seeds`. The first
    variant is the reference.
    """

    base: Scenario
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    runs: tuple[tuple[Outcome, ...], ...]
    table: pd.DataFrame
    classes: pd.DataFrame
    starving_s: float

    @property
    def labels(self) -> list[str]:
        """What the variants are called."""
        return [variant.label for variant in self.variants]

    @property
    def names(self) -> dict[str, str]:
        """What variants are called in tables, by label: letters where some label is long."""
        if max(map(len, self.labels)) <= LONG:
            return dict(zip(self.labels, self.labels, strict=True))
        return {label: letters(index) for index, label in enumerate(self.labels)}

    @property
    def failed(self) -> list[tuple[str, str]]:
        """Variants with failed runs, and why the first failed."""
        first = ((label, next((o.error for o in run if o.error), None)) for label, run in self.labelled_runs)
        return [(label, error) for label, error in first if error is not None]

    @property
    def labelled_runs(self) -> list[tuple[str, tuple[Outcome, ...]]]:
        """The label and the runs of each variant."""
        return list(zip(self.labels, self.runs, strict=True))

    @property
    def pairs(self) -> list[list[Outcome]]:
        """The runs of each variant under the seeds of which no run failed."""
        return whole_pairs(self.runs)

    @property
    def summaries(self) -> list[dict[str, Json]]:
        """The summaries of all runs that have one, variant by variant."""
        return [outcome.summary for run in self.runs for outcome in run if outcome.summary is not None]

    @property
    def identical(self) -> list[str]:
        """The variants whose every run gave the reference's results to the last bit, request by request."""
        first, *others = self.pairs
        found = zip(self.labels[1:], others, strict=True)
        return [label for label, run in found if first and all(map(_is_same, first, run))]

    def difference(self, column: str, variant: str | None = None) -> dict[str, object]:
        """The row of a metric's column, such as `p99_ttft_ms`, of a variant, by default the last."""
        chosen = self.table["column"].eq(column) & self.table["variant"].eq(variant or self.labels[-1])
        rows = self.table[chosen].to_dict("records")
        if not rows:
            known = ", ".join(dict.fromkeys(self.table["column"]))
            raise KeyError(f"no {column} of {variant or self.labels[-1]}; there are {known}")
        return {str(key): value for key, value in rows[0].items()}

    @property
    def verdicts(self) -> list[str]:
        """What each comparison made shows; see `verdict`."""
        return [str(each) for each in self.table["verdict"].dropna()] if "verdict" in self.table else []

    @property
    def nothing_shown(self) -> bool:
        """Whether no metric of any variant is shown to differ."""
        return len(self.verdicts) > 0 and not any(verdict in DIFFERS for verdict in self.verdicts)


def _is_same(one: Outcome, other: Outcome) -> bool:
    """Whether two runs have the same numbers and the same requests, whoever has decided."""
    summaries = [
        {key: found for key, found in (outcome.summary or {}).items() if key not in _WHO}
        for outcome in (one, other)
    ]
    samples, others = dict(one.samples or {}), dict(other.samples or {})
    return (
        summaries[0] == summaries[1]
        and samples.keys() == others.keys()
        and all(values.tobytes() == others[name].tobytes() for name, values in samples.items())
    )


def letters(index: int) -> str:
    """A to Z, then AA, AB, …"""
    return (letters(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def whole_pairs(runs: Sequence[Sequence[Outcome]]) -> list[list[Outcome]]:
    """The runs of each variant under the seeds of which no variant's run failed."""
    whole = [all(outcome.error is None for outcome in pair) for pair in zip(*runs, strict=True)]
    return [[outcome for outcome, is_whole in zip(run, whole, strict=True) if is_whole] for run in runs]


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
            row: dict[str, object] = {"metric": metric.name, "column": metric.column, "variant": label}
            row |= _with_ends("mean", replication_interval(values))
            if values is not columns[0]:
                found = PairedDifferences.of(columns[0], values)
                row |= _compared(found, reference.estimate)
                row |= {"evidence": evidence(found), "verdict": verdict(found, comparisons, is_exact)}
            rows.append(row)
    return pd.DataFrame(rows)


def _is_told(value: float) -> bool:
    return isfinite(value) and value != 0.0


def _with_ends(column: str, found: Interval) -> dict[str, object]:
    return {column: found.estimate, f"{column}_low": found.low, f"{column}_high": found.high}


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
        return f"the same change in each of {count} seeds"
    agree, way = max((found.lower, "lower"), (found.higher, "higher"))
    return f"{way} in {agree} of {count} seeds"


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
            for column, (key, factor) in _CLASS_COLUMNS.items():
                row |= _with_ends(column, replication_interval(_class_values(found, key, factor)))
            tails = _class_values(found, *_CLASS_COLUMNS["p99_ttft_s"])
            first = reference.setdefault(name, tails)
            if first is not tails and len(first) == len(tails):
                row |= _with_ends("p99_ttft_s_difference", PairedDifferences.of(first, tails).interval())
            wait_s = row["max_wait_s"]
            row["starves"] = isinstance(wait_s, float) and wait_s > starving_s
            rows.append(row)
    return pd.DataFrame(rows)


def _by_class(outcomes: Sequence[Outcome]) -> dict[str, list[Mapping[str, Json]]]:
    found: dict[str, list[Mapping[str, Json]]] = {}
    for outcome in outcomes:
        classes = (outcome.summary or {}).get("classes")
        for name, row in (classes if isinstance(classes, Mapping) else {}).items():
            assert isinstance(row, Mapping)
            found.setdefault(name, []).append(row)
    return found


def _class_values(rows: Sequence[Mapping[str, Json]], key: str, factor: float) -> list[float]:
    return [factor * number(row.get(key)) for row in rows]


def jain(outcomes: Sequence[Outcome]) -> list[float]:
    """Jain's index of the classes' speeds in each run; empty without classes."""
    values = [number((outcome.summary or {}).get("class_jain_index")) for outcome in outcomes]
    return values if any(value == value for value in values) else []
