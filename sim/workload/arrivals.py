"""When requests arrive: renewal processes in operational time, bent by a rate curve into clock time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.scenario.workload import ConstantWorkload, GammaWorkload, OpenLoopSection
from sim.values import Floats

Gaps = Callable[[int], Floats]


def arrival_times_s(section: OpenLoopSection, rng: np.random.Generator) -> Floats:
    """Arrival times in seconds, rising, up to `duration_s` (included) or `num_requests` of them.

    Operational time is the number of requests expected so far: gaps in it have mean 1. A longer run begins
    with the same arrivals as a shorter one of the same seed (unless rescaled by `exact_rate`).
    """
    clock = _Clock(section.rate_per_s, section.rate_curve or ((0.0, 1.0),))
    if section.num_requests is not None:
        times = np.cumsum(_gaps(section, rng)(section.num_requests))
        if isinstance(section, ConstantWorkload):
            times = np.arange(1.0, section.num_requests + 1)
    else:
        assert section.duration_s is not None
        times = _times_until(section, clock.operational(section.duration_s), rng)
    if section.exact_rate and len(times):
        times = times * (len(times) / times[-1])
    arrivals_s = clock.seconds(times)
    return arrivals_s if section.duration_s is None else np.minimum(arrivals_s, section.duration_s)


def _gaps(section: OpenLoopSection, rng: np.random.Generator) -> Gaps:
    """Draws of gaps of mean 1: gamma with vLLM's burstiness as its shape, exponential for Poisson."""
    if isinstance(section, GammaWorkload):
        shape = section.burstiness
        return lambda count: rng.standard_gamma(shape, count) / shape
    if isinstance(section, ConstantWorkload):
        return np.ones
    return rng.standard_exponential


def _times_until(section: OpenLoopSection, end: float, rng: np.random.Generator) -> Floats:
    """Arrivals in operational time up to `end`, drawn in batches until it is passed."""
    if isinstance(section, ConstantWorkload):
        return np.arange(1.0, np.floor(end * (1 + 1e-12)) + 1)
    gaps = _gaps(section, rng)
    batches, last = [np.empty(0)], 0.0
    while last <= end:
        batches.append(last + np.cumsum(gaps(1024 + int(end - last))))
        last = float(batches[-1][-1])
    times = np.concatenate(batches)
    return times[: np.searchsorted(times, end, side="right")]


class _Clock:
    """Turns clock time into operational time and back, for a rate that is constant piece by piece."""

    def __init__(self, rate_per_s: float, curve: tuple[tuple[float, float], ...]) -> None:
        self.starts_s = np.array([t_s for t_s, _ in curve])
        self.rates = rate_per_s * np.array([factor for _, factor in curve])
        self.starts = np.concatenate([[0.0], np.cumsum(self.rates[:-1] * np.diff(self.starts_s))])

    def operational(self, t_s: float) -> float:
        piece = int(np.searchsorted(self.starts_s, t_s, side="right")) - 1
        return float(self.starts[piece] + self.rates[piece] * (t_s - self.starts_s[piece]))

    def seconds(self, times: Floats) -> Floats:
        # side="left" skips pieces of rate 0, in which operational time stands still; it may give -1 at time 0
        piece = np.maximum(np.searchsorted(self.starts, times, side="left") - 1, 0)
        seconds: Floats = self.starts_s[piece] + (times - self.starts[piece]) / self.rates[piece]
        return seconds
