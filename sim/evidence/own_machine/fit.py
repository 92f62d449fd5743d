"""Robust least squares for the constants of a machine, and intervals that allow for noise in bursts.

Errors are log(measured / predicted), in units of the typical error of the step's kind. Steps far beyond it
(collections of garbage, first steps, another process) lose their weight altogether (Tukey's biweight).
Neighbouring steps share their noise, so intervals come from stretches of time, not from single steps: the
jackknife leaves out one stretch at a time, with Student's t for their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from sim.values import Floats

BIWEIGHT = 4.685
"""Errors beyond so many typical ones have no weight: 95 % efficiency on normal errors."""
LEAST_SCALE = 1e-4
"""No typical error is taken to be smaller: times are recorded in microseconds."""
FEW = 30
"""A kind with so many steps has a typical error that is half its own, half that of all."""
MOST_ROUNDS = 40
CONVERGED = 1e-5
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A constant with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class RobustFit:
    """Constants in the order asked for, and how they hang together.

    correlations: of the estimates, shape (constants, constants). num_outliers: steps without weight.
    """

    estimates: tuple[Estimate, ...]
    correlations: Floats
    num_outliers: int
    num_stretches: int
    converged: bool


def robust_fit(
    predict: Callable[[Floats], Floats],
    measured_s: Floats,
    groups: Sequence[str],
    stretches: np.ndarray,
    start: Floats,
    scale: Floats,
    low: Floats,
    high: Floats,
) -> RobustFit:
    """Fit the constants `start` so that `predict` comes near `measured_s`.

    groups: the kind of each step; each kind has its own typical error. stretches: the number of the stretch
    of time that each step is in. scale: what a constant changes by to matter; low, high: its bounds.
    """
    values = start.astype(np.float64).copy()
    number = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    group = np.array([number[name] for name in groups])
    converged = False
    errors, slopes = _linearised(predict, measured_s, values, scale, high)
    for round_ in range(MOST_ROUNDS):
        typical = _typical(errors, group, len(number))
        weights = _weights(errors / typical, redescending=round_ >= 4)
        step = _solve(slopes, errors, weights / typical**2)
        moved = np.clip(values + step * scale, low, high)
        change = np.abs(moved - values) / scale
        values = moved
        errors, slopes = _linearised(predict, measured_s, values, scale, high)
        if round_ >= 6 and change.max(initial=0.0) < CONVERGED:
            converged = True
            break
    typical = _typical(errors, group, len(number))
    weights = _weights(errors / typical, redescending=True)
    cov, count = _jackknife(slopes, errors, typical, stretches)
    deviation = np.sqrt(np.maximum(np.diag(cov), 0.0))
    reach = float(student_t.ppf(0.5 + LEVEL / 2, max(count - 1, 1))) * deviation * scale
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = cov / np.outer(deviation, deviation)
    return RobustFit(
        tuple(
            Estimate(float(v), float(max(v - r, lo)), float(min(v + r, hi)))
            for v, r, lo, hi in zip(values, reach, low, high, strict=True)
        ),
        np.nan_to_num(correlations),
        int((weights == 0).sum()),
        count,
        converged,
    )


def _linearised(
    predict: Callable[[Floats], Floats], measured_s: Floats, values: Floats, scale: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Errors log(measured / predicted), and how the predictions' logarithms change by `scale` each."""
    here = np.log(predict(values))
    slopes = np.empty((len(measured_s), len(values)))
    for i in range(len(values)):
        nudge = 1e-3 * scale[i]
        nudge = -nudge if values[i] + nudge > high[i] else nudge
        moved = values.copy()
        moved[i] += nudge
        slopes[:, i] = (np.log(predict(moved)) - here) * (scale[i] / nudge)
    return np.log(measured_s) - here, slopes


def _typical(errors: Floats, group: np.ndarray, count: int) -> Floats:
    """The typical error of each step's kind: 1.48 times the median of their sizes. A kind of few steps goes
    by all of them, for a fit passes through a few.
    """
    size = np.abs(errors)
    overall = 1.4826 * float(np.median(size))
    by_group = []
    for g in range(count):
        own = size[group == g]
        square = (len(own) * (1.4826 * np.median(own)) ** 2 + FEW * overall**2) / (len(own) + FEW)
        by_group.append(max(float(square) ** 0.5, LEAST_SCALE))
    return np.asarray(np.array(by_group)[group], dtype=np.float64)


def _weights(standardised: Floats, *, redescending: bool) -> Floats:
    """Biweight; at first Huber's weights, which let nobody go, for the start may be far off."""
    if redescending:
        return np.asarray(
            np.where(np.abs(standardised) < BIWEIGHT, (1.0 - (standardised / BIWEIGHT) ** 2) ** 2, 0.0)
        )
    return np.asarray(1.0 / np.maximum(1.0, np.abs(standardised) / 1.345))


def _solve(slopes: Floats, errors: Floats, weights: Floats) -> Floats:
    """Weighted least squares; what the steps do not show moves nowhere."""
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(slopes * root[:, None], errors * root, rcond=1e-10)[0])


def _jackknife(slopes: Floats, errors: Floats, typical: Floats, stretches: np.ndarray) -> tuple[Floats, int]:
    """Covariance of the constants (in units of their scale) by leaving out one stretch at a time, and how
    many there are. A step's pull is its weighted error, and how that changes with the error is the curvature.
    """
    share = np.minimum((errors / typical / BIWEIGHT) ** 2, 1.0)
    pull = (1.0 - share) ** 2 * errors / typical**2
    curvature = (1.0 - share) * (1.0 - 5.0 * share) / typical**2
    names = np.unique(stretches)
    whole = (slopes * curvature[:, None]).T @ slopes
    shifts = []
    for name in names:
        inside = stretches == name
        own = (slopes[inside] * curvature[inside, None]).T @ slopes[inside]
        shifts.append(np.linalg.lstsq(whole - own, -slopes[inside].T @ pull[inside], rcond=1e-12)[0])
    moved = np.array(shifts)
    count = len(names)
    moved = moved - moved.mean(axis=0)
    return np.asarray((count - 1) / count * moved.T @ moved), count
