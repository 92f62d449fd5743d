"""From simulated beside measured to errors, and from errors to how far a prediction can be trusted.

An error is (simulated − measured) / measured. A quantile over rows is weighted: runs that repeated one
condition share one vote, or a condition measured nine times would count nine times.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.evidence.validate.run_table import MeasuredRun

__all__ = ["Comparison", "ErrorSummary", "compare", "held_out", "is_saturated", "summarize_errors"]

#: Below this share of the offered rate a run did not keep up: its throughput tells what the engine can do.
KEEPING_UP = 0.96

THROUGHPUT = ("req_tput_rps", "in_tput_tok_s", "out_tput_tok_s", "total_tput_tok_s")


@dataclass(frozen=True)
class Comparison:
    """One metric of one run; the name of a throughput says in which regime it was measured."""

    run_id: str
    source: str
    gpu: str
    engine_version: str
    quality: str
    condition: str
    held_out: bool
    metric: str
    measured: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Signed relative error."""
        return 100.0 * (self.simulated / self.measured - 1.0)


@dataclass(frozen=True)
class ErrorSummary:
    """Errors in % over `rows` rows: median and p90 absolute, median signed; weighted."""

    rows: int
    median: float
    p90: float
    bias: float
    worst: tuple[Comparison, ...]


def held_out(run_id: str) -> bool:
    """Whether a run belongs to the third of all experiments that no constant was fitted to.

    Decided by a hash of its id without the last part, which tells twins and stages of one experiment apart.
    """
    experiment = re.sub(r"/(patched|vanilla|s\d+)$", "", run_id)
    return hashlib.sha256(experiment.encode()).digest()[0] % 3 == 0


def is_saturated(run: MeasuredRun, num_requests: int, offer_s: float) -> bool:
    """Whether measured throughput is the engine's limit, not just the rate of `num_requests` in `offer_s`."""
    if run.load in ("closed", "burst"):
        return True
    achieved = run.measured.get("req_tput_rps")
    if achieved is None or offer_s <= 0:
        return False
    return achieved < KEEPING_UP * num_requests / offer_s


def compare(
    run: MeasuredRun, simulated: dict[str, float], *, condition: str, saturated: bool
) -> list[Comparison]:
    """The metrics of a run that are measured, simulated and fit to be scored."""
    found = []
    for column, measured in run.measured.items():
        if (
            column in ("completed", "failed")
            or measured <= 0
            or column not in simulated
            or not run.scores(column)
        ):
            continue
        metric = column.removesuffix("_ms")
        if column in THROUGHPUT:
            metric = ("saturated_" if saturated else "open_loop_") + column
        found.append(
            Comparison(
                run_id=run.run_id,
                source=run.source,
                gpu=run.gpu or "",
                engine_version=run.engine_version or "",
                quality=run.quality,
                condition=condition,
                held_out=held_out(run.run_id),
                metric=metric,
                measured=measured,
                simulated=simulated[column],
            )
        )
    return found


def summarize_errors(comparisons: Sequence[Comparison], num_worst: int = 3) -> ErrorSummary:
    """The errors of one metric over any rows; ValueError if there are none."""
    if not comparisons:
        raise ValueError("no rows to summarize")
    votes = Counter(c.condition for c in comparisons)
    weights = np.array([1.0 / votes[c.condition] for c in comparisons])
    signed = np.array([c.error_percent for c in comparisons])
    ranked = sorted(comparisons, key=lambda c: -abs(c.error_percent))
    return ErrorSummary(
        rows=len(comparisons),
        median=weighted_quantile(np.abs(signed), weights, 0.5),
        p90=weighted_quantile(np.abs(signed), weights, 0.9),
        bias=weighted_quantile(signed, weights, 0.5),
        worst=tuple(ranked[:num_worst]),
    )


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """numpy's linear quantile where all weights are equal; each value stands at the middle of its weight."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middles = np.cumsum(weights) - 0.5 * weights
    span = middles[-1] - middles[0]
    if span <= 0:
        return float(values[-1])
    return float(np.interp(middles[0] + share * span, middles, values))


def group_by(
    comparisons: Iterable[Comparison], key: Callable[[Comparison], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Comparison]]:
    """Comparisons by a key, groups in sorted order of it."""
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(key(comparison), []).append(comparison)
    return dict(sorted(groups.items()))
