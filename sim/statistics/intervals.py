"""Confidence intervals: of a mean from independent replications, of a paired difference, of a share.

The interval of a share of trials is Wilson's (1927): sound near 0 and 1, where ± s / √n is not. Here too
stands how large a sample has to be for a share or a percentile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import ceil, isfinite, nan, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sim.results.metrics import is_thin

Values = Sequence[float] | NDArray[np.float64]

LEVEL = 0.95
ROUNDING = 1e-12
"""Values that differ by less than this share of their size are the same but for rounding."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its interval at confidence `level`, from `size` values.

    The ends are NaN where the values say nothing about the error: there are too few, or all are the same.
    """

    estimate: float
    low: float
    high: float
    size: int
    level: float = LEVEL

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def relative(self) -> float:
        """The half-width as a share of the estimate; NaN if that is zero."""
        return self.half_width / abs(self.estimate) if self.estimate else nan

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval; false if there is no interval."""
        return self.low <= value <= self.high

    @property
    def is_above_or_below_zero(self) -> bool:
        """Whether zero lies outside: of a difference, whether one is shown at this level."""
        return isfinite(self.low) and not self.holds(0.0)


@cache
def student_t(level: float, degrees: int) -> float:
    """The factor of a two-sided interval: `level` of Student's t with these degrees of freedom lie within."""
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, degrees))


def interval_around(
    estimate: float, variance: float, size: int, degrees: int, level: float = LEVEL
) -> Interval:
    """The t interval of a mean of `size` values with this sample variance, known to `degrees` of freedom."""
    half = student_t(level, degrees) * sqrt(variance / size)
    return Interval(estimate, estimate - half, estimate + half, size, level)


def replication_interval(values: Values, level: float = LEVEL) -> Interval:
    """The interval of the mean of independent replications: mean ± t(n − 1) · s / √n.

    Values that are not finite, as of a replication in which nothing finished, leave an estimate of NaN: their
    loss would not be random. One value has no interval, and neither have values that are all the same:
    either nothing is left to chance, or they are too coarse to show it. None is NaN altogether.
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array) or not np.isfinite(array).all():
        return Interval(nan, nan, nan, len(array), level)
    if all_the_same(array, float(np.abs(array).max())):
        return Interval(float(array.mean()), nan, nan, len(array), level)
    return interval_around(float(array.mean()), float(array.var(ddof=1)), len(array), len(array) - 1, level)


def all_the_same(values: Values, size: float) -> bool:
    """Whether values worked out from numbers of this size differ by no more than rounding."""
    return float(np.ptp(values)) <= ROUNDING * size


def jackknife_interval(estimate: float, without: Values, level: float = LEVEL) -> Interval:
    """The interval of an estimate that is no mean, from what it is without each of the n replications.

    Tukey's jackknife (1958): the variance is (n − 1)/n times the sum of squares of those about their mean. Of
    a mean it gives the interval over replications. The ends are NaN with fewer than two, and where it is the
    same without any of them.
    """
    array = np.asarray(without, dtype=np.float64)
    size = len(array)
    if size < 2 or not np.isfinite(array).all() or all_the_same(array, float(np.abs(array).max())):
        return Interval(estimate, nan, nan, max(size, 1), level)
    return interval_around(estimate, float(array.var()) * (size - 1) * size, size, size - 1, level)


def wilson_interval(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """The score interval of `successes` / `trials`.

    For independent trials. Requests of one run wait behind each other and are not: their share needs
    replications or batch means. Raises ValueError unless 0 ≤ successes ≤ trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no share")
    if trials == 0:
        return Interval(nan, nan, nan, 0, level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, weight = successes / trials, z * z / trials
    centre = (share + weight / 2) / (1 + weight)
    half = z * sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(share, low, high, trials, level)


def trials_to_show(share: float, level: float = LEVEL) -> int:
    """The fewest trials, all successes, whose score interval lies above a `share` below 1.

    With n successes of n its lower end is n / (n + z²).
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    return ceil(z * z * share / (1.0 - share))


class Trust(Enum):
    """What a percentile of a sample is worth."""

    SOUND = "sound"
    THIN = "thin"
    """Fewer than `metrics.FEW_ABOVE` values above it: drawn hollow, printed with a mark."""
    NONE = "none"
    """Less than one value above it: it would be the largest value seen, whatever the percentile."""


def trust_in_percentile(size: int, percent: float) -> Trust:
    """The worth of the `percent` percentile (0 < percent < 100) of `size` values."""
    if not 0.0 < percent < 100.0:
        raise ValueError(f"{percent} is no percentile between 0 and 100")
    if round(size * (1.0 - percent / 100.0), 6) < 1.0:
        return Trust.NONE
    return Trust.THIN if is_thin(size, percent) else Trust.SOUND
