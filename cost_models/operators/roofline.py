"""The soft maximum that all operators share."""

from __future__ import annotations


def pnorm(a: float, b: float, exponent: float) -> float:
    """(a^p + b^p)^(1/p): max(a, b) for a large exponent, a + b for 1. Scaled by the larger one against underflow."""
    if a < b:
        a, b = b, a
    if b <= 0.0:
        return a
    return float(a * (1.0 + (b / a) ** exponent) ** (1.0 / exponent))
