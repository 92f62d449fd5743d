"""The soft maximum that all operators share, and the array type they compute with."""

from __future__ import annotations

from math import pow
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


def pnorm(a: Floats, b: Floats, exponent: float) -> Floats:
    """Soft maximum (a^p + b^p)^(1/p), elementwise: a + b at p = 1, max(a, b) as p grows. Needs a, b >= 0.

    Scaled by the larger operand, so that microseconds to the tenth power do not underflow.
    """
    top = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.where(top > 0.0, top, 1.0)
    return np.asarray(top * (1.0 + ratio**exponent) ** (1.0 / exponent), dtype=np.float64)


def soft_max(a: float, b: float, exponent: float) -> float:
    """`pnorm` of two plain numbers, for the path taken once a step: `pow` is `**` for floats alone."""
    if a < b:
        a, b = b, a
    if b <= 0.0:
        return a
    return a * pow(1.0 + pow(b / a, exponent), 1.0 / exponent)
