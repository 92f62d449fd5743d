"""Which of several things each request asks for, some of them more popular than others."""

from __future__ import annotations

import numpy as np

from sim.scenario.requests import PopularitySection
from sim.values import Ints


def draw_choices(section: PopularitySection, num_things: int, count: int, rng: np.random.Generator) -> Ints:
    """A number from 0, most popular first, for each of `count` askers; -1 for those who ask for nothing.

    The first n of a longer draw are those of a draw of n.
    """
    draws = rng.random((count, 2))
    exponent = section.zipf_exponent if section.popularity == "zipf" else 0.0
    weight = np.cumsum(np.arange(1, num_things + 1, dtype=float) ** -exponent)
    chosen = np.searchsorted(weight / weight[-1], draws[:, 0], side="right")
    return np.where(draws[:, 1] < section.share, np.minimum(chosen, num_things - 1), -1)
