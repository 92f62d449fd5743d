"""How many replications a wanted precision takes: Stein's rule of two stages (1945).

A rule that looks again after every replication, and stops when the interval happens to be short, stops too
early too often: its intervals hold the truth less often than they say. Stein's rule fixes the number from the
variance of a first stage alone, and keeps that variance for the final interval, which is then as good as it
says for normal values.
"""

from __future__ import annotations

from math import ceil, isfinite

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
