"""How large a sample has to be for a share or a percentile, and the interval of a share of trials.

The interval is Wilson's (1927): sound near 0 and 1, where ± s / √n is not.
"""

from __future__ import annotations

from enum import Enum
from math import ceil, nan, sqrt
from statistics import NormalDist

from sim.results.metrics import is_thin
from sim.statistics.intervals import LEVEL, Interval


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
