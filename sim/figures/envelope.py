"""Drawing a million points as what a screen can show of them: the honest thinning behind the timelines.

In every pixel column the first, the last, the lowest and the highest point are kept, each where it was. A
line through them covers the same pixels as a line through all points, so no spike is lost and none is
invented.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


def envelope(x: Floats, y: Floats, columns: int) -> Indices:
    """Indices, ascending, of the points to draw so that a line looks as if all were drawn.

    `x` must ascend. At most four points are kept for each of `columns` equal parts of its range; with no more
    points than that all are kept. Scheme: M4 of Jugel et al., "M4: A Visualization-Oriented Time Series Data
    Aggregation", VLDB 2014.
    """
    if len(x) <= 4 * columns:
        return np.arange(len(x))
    column = column_of(x, float(x[0]), float(x[-1]), columns)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], len(x)) - 1
    by_height = np.lexsort((y, column))
    return np.unique(np.concatenate([first, last, by_height[first], by_height[last]]))


def column_of(x: Floats, start: float, end: float, columns: int) -> Indices:
    """Which of `columns` equal parts of [start, end] each value of `x` lies in (outside: the nearest)."""
    scale = columns / (end - start) if end > start else 0.0
    return np.clip(((x - start) * scale).astype(np.intp), 0, columns - 1)
