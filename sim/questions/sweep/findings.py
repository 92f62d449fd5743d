"""What a sweep finds: which promises each cell keeps, up to which rate they hold, what that costs, and which
cell is best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.questions.sweep.axes import RATE
from sim.questions.sweep.cells import label, words
from sim.questions.sweep.measures import attainment_column
from sim.questions.sweep.tables import PER_HOUR, PER_MILLION
from sim.scenario import SloTarget
from sim.statistics.intervals import Interval, jackknife_interval
from sim.statistics.paired import paired_difference
from sim.values import Floats

MET, MISSED, CLOSE, FAILED, NO_SLO = "met", "missed", "too close to say", "failed", ""
NO_DATA = "no data"
Targets = Mapping[str, SloTarget]

_SAME = 0.005
"""Cells whose goodput differs by less than this share are equally good, whatever the statistics show."""

_VLLM_FLAGS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_dtype",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "async_scheduling",
    "enforce_eager",
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate up to which a configuration keeps its targets, in 1/s, from all replications.

    `by_target` says so of each target alone, `joint` of all of them, `runs` for each replication; a rate of 0
    stands for one below all that were tried. `at_least` marks rates that the sweep did not exceed, `below` is
    its lowest rate where not even that was kept by all replications. `tried` are the rates of the sweep on
    both sides of `joint`: between them nothing was simulated.
    """

    setting: dict[str, object]
    by_target: dict[str, Interval]
    joint: Interval
    runs: tuple[float, ...]
    at_least: bool
    below: float | None
    tried: tuple[float, float]

    @property
    def label(self) -> str:
        """The configuration in words; empty if only the rate varies."""
        return label(self.setting)

    @property
    def first_to_break(self) -> str | None:
        """The target that fails at the lowest rate; None if none fails in the sweep."""
        if self.at_least or not self.by_target:
            return None
        rates = {key: found.estimate for key, found in self.by_target.items()}
        return min(rates, key=lambda key: rates[key])


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell, or the best configuration where the rate varies.

    `setting` is what it is, by path; `row` its number in the table of cells, None for a configuration at all
    rates. `equals` of `of` are not shown to be worse than the highest under the same seeds, and `reason` says
    what this one has before those.
    """

    setting: dict[str, object]
    row: int | None
    measure: str
    equals: int
    of: int
    reason: str


def verdicts(table: pd.DataFrame, targets: Targets) -> list[str]:
    """Of each cell: whether every target is met, some target missed, or the interval holds the target; no
    data, if in some replication no request was judged.
    """
    with_percentile = {key: t.percentile for key, t in targets.items() if t.percentile is not None}
    found = []
    for _, row in table.iterrows():
        if not row["replications"]:
            found.append(FAILED)
            continue
        each = [_verdict(row, attainment_column(key), p / 100.0) for key, p in with_percentile.items()]
        worst = next((verdict for verdict in (MISSED, NO_DATA, CLOSE, MET) if verdict in each), NO_SLO)
        found.append(worst)
    return found


def _verdict(row: pd.Series, column: str, wanted: float) -> str:
    estimate, low, high = row[column], row[f"{column}_low"], row[f"{column}_high"]
    if isnan(estimate):
        return NO_DATA
    if isnan(low):
        return MET if estimate >= wanted else MISSED
    if low >= wanted:
        return MET
    return MISSED if high < wanted else CLOSE


def capacities(replications: pd.DataFrame, paths: Sequence[str], targets: Targets) -> list[Capacity]:
    """Of each configuration, in the order of the table; empty without a rate axis or without percentiles.

    A target holds up to the rate where its attainment, the mean over replications joined by straight lines,
    falls to its percentile. The interval is the jackknife's: how that rate moves as each replication is left
    out.
    """
    shares = {key: t.percentile / 100.0 for key, t in targets.items() if t.percentile is not None}
    if RATE not in paths or not shares:
        return []
    others = [path for path in paths if path != RATE]
    found = []
    groups = replications.groupby(others, sort=False, dropna=False) if others else [((), replications)]
    for values, rows in groups:
        attained = rows[[attainment_column(key) for key in shares]]
        if rows["error"].notna().any() or attained.isna().any(axis=None) or rows[RATE].nunique() < 2:
            continue
        own = dict(zip(others, values if isinstance(values, tuple) else (values,), strict=True))
        found.append(_capacity(own, rows, shares))
    return found


def _capacity(setting: dict[str, object], rows: pd.DataFrame, shares: Mapping[str, float]) -> Capacity:
    curves = {key: _curves(rows, attainment_column(key)) for key in shares}
    rate = np.sort(rows[RATE].unique()).astype(np.float64)

    def held(chosen: NDArray[np.intp]) -> dict[str, float]:
        """The rate up to which these replications together keep each target."""
        return {key: _highest(rate, curves[key][chosen].mean(axis=0), shares[key]) for key in shares}

    every = np.arange(len(next(iter(curves.values()))))
    together = held(every)
    without = [held(np.delete(every, index)) for index in every] if len(every) > 1 else []
    runs = tuple(min(held(np.array([index])).values()) for index in every)
    joint = jackknife_interval(min(together.values()), [min(each.values()) for each in without])
    place = min(max(int(np.searchsorted(rate, joint.estimate)), 1), len(rate) - 1)
    return Capacity(
        setting,
        {key: jackknife_interval(together[key], [each[key] for each in without]) for key in shares},
        joint,
        runs,
        at_least=all(one == rate[-1] for one in runs),
        below=float(rate[0]) if 0.0 in runs else None,
        tried=(float(rate[place - 1]), float(rate[place])),
    )


def _curves(rows: pd.DataFrame, column: str) -> Floats:
    """Attainment by replication (rows) and ascending rate (columns)."""
    table = rows.pivot(index="replication", columns=RATE, values=column)  # noqa: PD010  # one run each
    return table.sort_index(axis=1).to_numpy(dtype=np.float64)


def _highest(rate: Floats, share: Floats, wanted: float) -> float:
    """`highest_rate`, and 0 where not even the lowest rate is kept."""
    from sim.figures.attainment import highest_rate

    found = highest_rate(rate, share, wanted)
    return 0.0 if isnan(found) else found


def best_cell(
    table: pd.DataFrame, replications: pd.DataFrame, paths: Sequence[str], targets: Targets
) -> Best | None:
    """The cell with the most goodput, or output tokens per GPU without SLO; among those not shown to be worse
    than it under the same seeds, the one with the most headroom. None if no cell succeeded.
    """
    measure = "request_goodput" if targets else "output_throughput_per_gpu"
    if measure not in table or table[measure].notna().sum() == 0:
        return None
    top = int(table[measure].fillna(-np.inf).argmax())
    good = replications[replications["error"].isna()]
    runs = {row: _runs(good, table.iloc[row], paths, measure) for row in range(len(table))}
    equals = [row for row, found in runs.items() if _no_worse(*_in_common(runs[top], found))]
    load = {row: _load(table.iloc[row], targets) for row in equals}
    row = min(equals, key=lambda row: (load[row][0], row))
    setting = {path: table.iloc[row][path] for path in paths}
    return Best(setting, row, measure, len(equals), len(table), load[row][1])


def best_capacity(found: Sequence[Capacity]) -> Best | None:
    """The configuration that keeps its targets up to the highest rate; None if there is no choice."""
    if len(found) < 2:
        return None
    top = max(found, key=lambda one: one.joint.estimate)
    if top.joint.estimate == 0.0:
        return None
    equals = [one for one in found if _no_worse(np.array(top.runs), np.array(one.runs))]
    return Best(top.setting, None, "capacity", len(equals), len(found), "highest rate")


def _runs(good: pd.DataFrame, cell: pd.Series, paths: Sequence[str], measure: str) -> pd.Series:
    """The measure of a cell by seed."""
    chosen = np.logical_and.reduce([good[path].eq(cell[path]).to_numpy() for path in paths], axis=0)
    rows = good[chosen] if len(paths) else good
    return rows.set_index("seed")[measure]


def _in_common(first: pd.Series, second: pd.Series) -> tuple[Floats, Floats]:
    seeds = first.index.intersection(second.index)
    return first[seeds].to_numpy(dtype=np.float64), second[seeds].to_numpy(dtype=np.float64)


def _no_worse(top: Floats, other: Floats) -> bool:
    """Whether the paired difference is next to nothing, or shown by no interval.

    Differences that are all the same have no interval: of values that vary with the seed they show nothing;
    of values that do not (no chance is left, or all lie beyond the rates tried) each counts as it is.
    """
    if not len(top) or len(top) != len(other):
        return False
    difference = paired_difference(top, other)
    if not isfinite(difference.estimate):
        return False
    if abs(difference.estimate) <= _SAME * abs(float(top.mean())):
        return True
    if isfinite(difference.low):
        return not difference.is_above_or_below_zero
    return bool(np.ptp(top) > 0.0)


def _load(cell: pd.Series, targets: Targets) -> tuple[float, str]:
    """How much of its limits a cell uses up, at the worst; without SLO, its mean E2E latency."""
    used = {key: cell[latency_column(t)] / 1000.0 / t.limit_s for key, t in targets.items()}
    known = {key: share for key, share in used.items() if isfinite(share)}
    if known:
        worst = max(known, key=lambda key: known[key])
        what = "most headroom" if known[worst] <= 1.0 else "least over its limits"
        return known[worst], f"{what}: {_words_of(targets[worst])} at {known[worst]:.0%} of its limit"
    mean_ms = cell["mean_e2el_ms"]
    return (mean_ms if isfinite(mean_ms) else np.inf), f"shortest mean E2E: {mean_ms / 1000.0:.3g} s"


def _statistic(target: SloTarget) -> str:
    """The statistic of the summary nearest to a target's percentile from above."""
    percent = 99.0 if target.percentile is None else target.percentile
    return next((name for name, p in (("median", 50), ("p90", 90), ("p95", 95)) if percent <= p), "p99")


def latency_column(target: SloTarget) -> str:
    """The column of the latency that a target is about, at its percentile or the next higher one."""
    return f"{_statistic(target)}_{'e2el' if target.metric == 'e2e' else target.metric}_ms"


def _words_of(target: SloTarget) -> str:
    name = {"median": "p50"}.get(_statistic(target), _statistic(target))
    return f"{name} {target.metric.upper()}"


def vllm_flags(setting: Mapping[str, object]) -> str:
    """A setting as arguments of `vllm serve`; empty if none of them is one."""
    flags = []
    for path, value in setting.items():
        section, _, name = path.partition(".")
        if section != "engine" or name not in _VLLM_FLAGS or value == "default":
            continue
        flag = name.replace("_", "-")
        if isinstance(value, (bool, np.bool_)):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag} {words(value)}")
    return " ".join(flags)


def at_capacity(summary: pd.DataFrame, found: Capacity) -> tuple[float, float, float]:
    """Of a configuration, at the highest rate of the sweep that keeps its targets: that rate in 1/s, and the
    cost of an hour and of a million output tokens there. NaN if there is no such rate.
    """
    rows = _own(summary, found)
    rows = rows[rows[RATE] <= found.joint.estimate].sort_values(RATE)
    if not len(rows):
        return nan, nan, nan
    row = rows.iloc[-1]
    return float(row[RATE]), float(row[PER_HOUR]), float(row[PER_MILLION])


def _own(summary: pd.DataFrame, found: Capacity) -> pd.DataFrame:
    """The cells of a configuration."""
    rows = summary.to_dict("records")
    return summary[[all(row[path] == value for path, value in found.setting.items()) for row in rows]]


def capacity_costs(summary: pd.DataFrame, capacities: Sequence[Capacity]) -> pd.DataFrame:
    """The table that the figure of capacity for money is drawn from: a row for each configuration."""
    rows = []
    for found in capacities:
        own = _own(summary, found)
        rows.append(
            {
                "label": label(found.setting) or "as it is",
                "capacity_per_s": found.joint.estimate,
                "capacity_low": found.joint.low,
                "capacity_high": found.joint.high,
                "cost_per_h": float(own[PER_HOUR].iloc[0]),
            }
        )
    return pd.DataFrame(rows)
