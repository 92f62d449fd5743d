"""Draws of random times."""

from __future__ import annotations

import math

import numpy as np

from sim.scenario.distributions import ExponentialTime, FixedTime, LognormalTime, RandomTime, UniformTime
from sim.values import Floats


def draw_times_s(section: RandomTime, count: int, rng: np.random.Generator) -> Floats:
    """`count` times in seconds; the first n of a longer draw are those of a draw of n."""
    match section:
        case FixedTime():
            return np.full(count, float(section.value_s))
        case UniformTime():
            low, high = section.range_s
            return low + (high - low) * rng.random(count)
        case ExponentialTime():
            return section.mean_s * rng.standard_exponential(count)
        case LognormalTime():
            if section.median_s is not None:
                mu = math.log(section.median_s)
            else:
                assert section.mean_s is not None
                mu = math.log(section.mean_s) - section.sigma**2 / 2
            drawn: Floats = np.exp(mu + section.sigma * rng.standard_normal(count))
            return drawn
    raise TypeError(f"{type(section).__name__} is no distribution of times")
