"""Robust least squares on the logarithm of time, within physical bounds; says when a fit failed or hit a
bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
from scipy.optimize import least_squares

from cost_models.errors import CalibrationError
from cost_models.fit.forms import Form
from cost_models.fit.tables import OperatorTable
from cost_models.operators.roofline import Floats

LOSS_SCALE = 0.05  # Relative errors beyond this count linearly instead of squared (soft L1).
MAX_ROWS = 4000
STARTS = 2
MIN_ROWS_PER_PARAMETER = 2


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """A fitted operator: its parameters, rows used, and what is to be said about it ("" = nothing)."""

    operator: str
    params: object
    rows: int
    cost: float
    warnings: tuple[str, ...] = field(default=())


def fit(table: OperatorTable, form: Form, seed: int = 0) -> FitOutcome:
    """Fit `form` to all rows of `table` (a fixed random sample of 4,000 where there are more).

    Minimises soft-L1 of log(predicted / measured) from two starts, the first at the form's own, the other
    scattered by `seed`. Raises CalibrationError when no start converges or rows are too few.
    """
    names = list(form.bounds)
    if len(table) < MIN_ROWS_PER_PARAMETER * len(names):
        raise CalibrationError(
            f"{table.operator} on {table.gpu}: {len(table)} rows are too few for {len(names)} parameters"
        )
    rng = np.random.default_rng(seed)
    if len(table) > MAX_ROWS:
        mask = np.zeros(len(table), dtype=np.bool_)
        mask[rng.choice(len(table), MAX_ROWS, replace=False)] = True
        table = table.rows(mask)
    start, low, high = (
        np.array(column, dtype=np.float64) for column in zip(*form.bounds.values(), strict=True)
    )
    measured = np.log(table.seconds)

    def errors(values: Floats) -> Floats:
        return cast(Floats, np.log(form.predict(table, _params(form, names, values))) - measured)

    best = None
    for attempt in range(STARTS):
        scatter = np.exp(rng.normal(0.0, 0.4, len(names))) if attempt else np.ones(len(names))
        first = np.clip(start * scatter, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
        found = least_squares(
            errors,
            first,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            x_scale=start,
            diff_step=np.full(len(names), 1e-3),
            max_nfev=80,
        )
        if np.isfinite(found.cost) and (best is None or found.cost < best.cost):
            best = found
    if best is None:
        raise CalibrationError(f"{table.operator} on {table.gpu}: the fit does not converge from any start")
    warnings = _bound_warnings(form, names, best.x, low, high)
    if best.status <= 0:
        warnings.append("stopped before it converged")
    return FitOutcome(
        table.operator, _params(form, names, best.x), len(table), float(best.cost), tuple(warnings)
    )


def _params(form: Form, names: list[str], values: Floats) -> object:
    return form.params(**form.fixed, **{n: float(v) for n, v in zip(names, values, strict=True)})


def _bound_warnings(form: Form, names: list[str], values: Floats, low: Floats, high: Floats) -> list[str]:
    span = high - low
    return [
        f"{name} at its {'lower' if value - lo < 1e-3 * width else 'upper'} bound {value:.3g}"
        for name, value, lo, hi, width in zip(names, values, low, high, span, strict=True)
        if name not in form.free and (value - lo < 1e-3 * width or hi - value < 1e-3 * width)
    ]
