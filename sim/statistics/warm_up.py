"""MSER-5 (White, 1997): where to cut a series so that what remains estimates its mean best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.statistics.intervals import Values

BATCH = 5


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many values of the series to leave out, and whether the rest looks steady.

    Not steady means that the best cut lies in the last half: the series never settles, or is too short to
    show that it does.
    """

    length: int
    is_steady: bool


def mser5(series: Values) -> WarmUp:
    """Find the cut d that makes the sum of squares about the mean behind it, over (n − d)², smallest.

    The series is in order of time, NaN left out by the caller, and is looked at in means of five; a rest
    shorter than five counts as kept. The cut is sought everywhere but among the last five means, where the
    measure is chance alone. Raises ValueError for values that are not finite.
    """
    values = np.asarray(series, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("the series has values that are not finite")
    means = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    if len(means) < 2 * BATCH:
        return WarmUp(0, is_steady=False)
    left = np.arange(len(means), 0, -1)
    # Sums from each cut to the end, of values about the overall mean: less is lost to rounding.
    centred = means - means.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    cut = int(np.argmin(error[:-BATCH]))
    return WarmUp(cut * BATCH, is_steady=cut <= len(means) // 2)
