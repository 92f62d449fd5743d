"""What two configurations under the same seeds show: differences pair by pair, and how far to trust them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, isfinite, log2, nan

import numpy as np

from sim.statistics.intervals import LEVEL, ROUNDING, Interval, Values, replication_interval
from sim.values import Floats

LEAST_DISTINCT = 3
"""So many different differences make an interval that shows something: two may be close together by luck."""


def paired_difference(first: Values, second: Values, level: float = LEVEL) -> Interval:
    """The interval of the mean of `second` − `first`, pair by pair.

    Pairs are replications with the same seed: what both have in common, such as the arrivals, cancels. The
    ends are NaN if there is one pair, or if all differ by the same. Raises ValueError if the lengths differ.
    """
    return replication_interval(_differences(first, second), level)


def _differences(first: Values, second: Values) -> Floats:
    """`second` − `first`, where differences that are the same but for rounding are made the same."""
    if len(first) != len(second):
        raise ValueError(f"pairs need equally many values, not {len(first)} and {len(second)}")
    before, after = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    found = after - before
    if not np.isfinite(found).all():
        return found
    rounding = ROUNDING * float(max(np.abs(before).max(initial=0.0), np.abs(after).max(initial=0.0)))
    same = 0.0
    for index in np.argsort(np.abs(found), kind="stable"):
        if abs(found[index] - same) > rounding:
            same = found[index]
        found[index] = same
    return found


@dataclass(frozen=True, slots=True)
class PairedDifferences:
    """`second` − `first` under each seed, and what these differences show together.

    With three different ones or more it is their t interval that shows a difference. Fewer have no interval:
    coarse numbers, such as blocks or preemptions, differ by the same under some seeds by luck. They show a
    difference where so many seeds agree on its direction that luck is unlikely (the sign test).
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, first: Values, second: Values) -> PairedDifferences:
        """Raises ValueError if the lengths differ."""
        return cls(tuple(map(float, _differences(first, second))))

    @property
    def num_distinct(self) -> int:
        """How many different values there are."""
        return len(set(self.values))

    @property
    def lower(self) -> int:
        """Under how many seeds the second is lower."""
        return sum(value < 0.0 for value in self.values)

    @property
    def higher(self) -> int:
        """Under how many seeds the second is higher."""
        return sum(value > 0.0 for value in self.values)

    def interval(self, level: float = LEVEL) -> Interval:
        """The t interval of the mean difference; the ends are NaN with fewer than three different values."""
        found = replication_interval(self.values, level)
        if self.num_distinct < LEAST_DISTINCT:
            return Interval(found.estimate, nan, nan, found.size, level)
        return found

    def shows(self, level: float = LEVEL) -> bool:
        """Whether a difference is shown at this level: by the interval, or without one by the sign test."""
        found = self.interval(level)
        if isfinite(found.low):
            return found.is_above_or_below_zero
        return isfinite(found.estimate) and sign_test(self.lower, self.higher) <= 1.0 - level


def sign_test(lower: int, higher: int) -> float:
    """How likely signs at least as one-sided as these are where each is a matter of luck; two-sided."""
    count = lower + higher
    tail = sum(comb(count, index) for index in range(min(lower, higher) + 1))
    return min(1.0, 2.0 * tail / 2.0**count)


def pairs_to_show(level: float = LEVEL) -> int:
    """The fewest pairs whose signs, all the same, show a difference at this level: 6 at 95 %."""
    return ceil(log2(2.0 / (1.0 - level)) - 1e-9)
