"""Long series and many runs: where to cut a series, the mean of one whose values depend on their neighbours,
and how many replications a wanted precision takes.

A rule that looks again after every replication, and stops when the interval happens to be short, stops too
early too often. Stein's rule of two stages (1945) fixes the number from the variance of a first stage alone,
and keeps that variance for the final interval, which is then as good as it says for normal values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, nan

import numpy as np

from sim.statistics.intervals import (
    LEVEL,
    Interval,
    Values,
    all_the_same,
    interval_around,
    replication_interval,
    student_t,
)

BATCHES = 20
MOST_ALIKE = 0.5
"""A lag-1 correlation of batch means above this says that the run is too short to tell its own error."""
TOGETHER = 5
"""Values of which MSER-5 takes the mean before it looks for the cut."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many values of the series to leave out, and whether the rest looks steady.

    Not steady means that the best cut lies in the last half: the series never settles, or is too short to
    show that it does.
    """

    length: int
    is_steady: bool


def mser5(series: Values) -> WarmUp:
    """MSER-5 (White, 1997): find where to cut a series so that what remains estimates its mean best.

    The cut d makes the sum of squares about the mean of what is behind it, over (n − d)², smallest.

    The series is in order of time, NaN left out by the caller, and is looked at in means of five; a rest
    shorter than five counts as kept. The cut is sought everywhere but among the last five means, where the
    measure is chance alone. Raises ValueError for values that are not finite.
    """
    values = np.asarray(series, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("the series has values that are not finite")
    means = values[: len(values) // TOGETHER * TOGETHER].reshape(-1, TOGETHER).mean(axis=1)
    if len(means) < 2 * TOGETHER:
        return WarmUp(0, is_steady=False)
    left = np.arange(len(means), 0, -1)
    # Sums from each cut to the end, of values about the overall mean: less is lost to rounding.
    centred = means - means.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    cut = int(np.argmin(error[:-TOGETHER]))
    return WarmUp(cut * TOGETHER, is_steady=cut <= len(means) // 2)


def batch_means(series: Values, level: float = LEVEL) -> Interval:
    """Cut the series, in order of time, into 20 equal batches and take their means for replications.

    What neighbouring means still have in common widens the interval: the variance is that of a first-order
    autoregression with their lag-1 correlation r, (1 + r) / (1 − r) times that of independent values. With
    r above 0.5, or fewer than two values a batch, the ends are NaN: the run is too short. Up to 19 values at
    the start are left out to make batches equal. Values that are not finite make everything NaN.

    On waiting times of M/M/1 and M/D/1 at loads up to 0.8, 95 % intervals from 40,000 customers hold the mean
    in 93 to 97 % of runs; of M/M/1 at a load of 0.9 those from 10,000 do in 87 %.
    """
    values = np.asarray(series, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        return Interval(nan, nan, nan, len(values), level)
    length = len(values) // BATCHES
    if length < 2:
        return Interval(float(values.mean()), nan, nan, len(values), level)
    means = values[len(values) - BATCHES * length :].reshape(BATCHES, length).mean(axis=1)
    estimate, variance = float(means.mean()), float(means.var(ddof=1))
    alike = _lag_1_correlation(means)
    if alike > MOST_ALIKE:
        return Interval(estimate, nan, nan, len(values), level)
    variance *= (1.0 + alike) / (1.0 - alike)
    found = interval_around(estimate, variance, BATCHES, BATCHES - 1, level)
    return Interval(estimate, found.low, found.high, len(values), level)


def _lag_1_correlation(means: Values) -> float:
    """Of neighbours, by von Neumann's ratio of successive differences; 0 if it is negative."""
    centred = np.asarray(means) - np.mean(means)
    total = float((centred**2).sum())
    if total == 0.0:
        return 0.0
    return max(0.0, 1.0 - float((np.diff(centred) ** 2).sum()) / (2.0 * total))


FIRST_STAGE = 10
"""Replications of the first stage: fewer make a poor guess of the variance, and so far too many later."""


def replications_needed(
    first_stage: Values, precision: float, level: float = LEVEL, mean: float | None = None
) -> int | None:
    """How many replications, the first stage included, until half-width / |mean| ≤ `precision`.

    The relative error is judged against `mean`, by default that of the first stage; the true mean may be
    smaller, so precision is sought as p / (1 + p) of the estimate, which bounds the error against the true
    one by p. None if no number does: a mean of zero, or values that are not finite.
    """
    values = np.asarray(first_stage, dtype=np.float64)
    if len(values) < 2:
        raise ValueError(f"a first stage has at least two values, not {len(values)}")
    estimate = float(values.mean()) if mean is None else mean
    deviation = float(values.std(ddof=1))
    if not isfinite(deviation) or not isfinite(estimate):
        return None
    if deviation == 0.0:
        return len(values)
    wanted = abs(estimate) * precision / (1.0 + precision)
    if wanted == 0.0:
        return None
    return max(len(values), ceil((student_t(level, len(values) - 1) * deviation / wanted) ** 2))


def two_stage_interval(values: Values, first_stage: int, level: float = LEVEL) -> Interval:
    """The interval of the mean of all values, of which the first `first_stage` told how many there had to be.

    Its width comes from the variance of the first stage (see the module), unless all values of that are the
    same: then it is the interval of all values.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) <= first_stage or not np.isfinite(array).all():
        return replication_interval(array, level)
    first = array[:first_stage]
    if all_the_same(first, float(np.abs(first).max())):
        return replication_interval(array, level)
    variance = float(first.var(ddof=1))
    return interval_around(float(array.mean()), variance, len(array), first_stage - 1, level)
