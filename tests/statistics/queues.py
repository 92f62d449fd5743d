"""Queues whose answers are known: waiting times of many independent runs at once, by Lindley's recursion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def waits(
    seed: int, runs: int, customers: int, load: float, *, service: str = "M", first_wait: float = 0.0
) -> Floats:
    """Times in queue, shape (runs, customers), of M/M/1 (`service="M"`) or M/D/1 (`"D"`); mean service 1.

    The recursion W' = max(0, W + S − A) in closed form: W_n = X_n − min(0, X_1, …, X_n) with X the random
    walk of S − A, started at `first_wait`.
    """
    random = np.random.default_rng(seed)
    gaps = random.exponential(1.0 / load, (runs, customers))
    served = random.exponential(1.0, (runs, customers)) if service == "M" else np.ones((runs, customers))
    walk = np.cumsum(served - gaps, axis=1) + first_wait
    return walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0.0)


def mean_wait(load: float, service: str = "M") -> float:
    """Pollaczek and Khinchine: ρ (1 + c²) / (2 (1 − ρ)) services, c² = 1 for M and 0 for D."""
    return load * (2.0 if service == "M" else 1.0) / (2.0 * (1.0 - load))
