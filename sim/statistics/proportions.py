"""The interval of a share of independent trials (Wilson, 1927): sound near 0 and 1, where ± s / √n is not."""

from __future__ import annotations

from math import ceil, nan, sqrt
from statistics import NormalDist

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
