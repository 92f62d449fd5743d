"""Fits everything that a directory of tables has on one GPU and writes it down as a calibration.

A fit is robust least squares on the logarithm of time, within physical bounds; it says when it failed or hit
a bound.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
from scipy.optimize import least_squares

from cost_models.calibration import Residual, WholeModel
from cost_models.errors import CalibrationError
from cost_models.fit.forms import Form, form
from cost_models.fit.tables import OperatorTable, read_tables
from cost_models.gpus import gpu
from cost_models.operators.products import CUSTOM_ALL_REDUCE_LIMIT_BYTES
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


def fit(table: OperatorTable, formula: Form, seed: int = 0) -> FitOutcome:
    """Fit `formula` to all rows of `table` (a fixed random sample of 4,000 where there are more).

    Minimises soft-L1 of log(predicted / measured) from two starts, the first at the formula's own, the other
    scattered by `seed`. Raises CalibrationError when no start converges or rows are too few.
    """
    names = list(formula.bounds)
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
        np.array(column, dtype=np.float64) for column in zip(*formula.bounds.values(), strict=True)
    )
    measured = np.log(table.seconds)

    def errors(values: Floats) -> Floats:
        return cast(Floats, np.log(formula.predict(table, _params(formula, names, values))) - measured)

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
    warnings = _bound_warnings(formula, names, best.x, low, high)
    if best.status <= 0:
        warnings.append("stopped before it converged")
    return FitOutcome(
        table.operator, _params(formula, names, best.x), len(table), float(best.cost), tuple(warnings)
    )


def _params(formula: Form, names: list[str], values: Floats) -> object:
    return formula.params(**formula.fixed, **{n: float(v) for n, v in zip(names, values, strict=True)})


def _bound_warnings(formula: Form, names: list[str], values: Floats, low: Floats, high: Floats) -> list[str]:
    span = high - low
    return [
        f"{name} at its {'lower' if value - lo < 1e-3 * width else 'upper'} bound {value:.3g}"
        for name, value, lo, hi, width in zip(names, values, low, high, span, strict=True)
        if name not in formula.free and (value - lo < 1e-3 * width or hi - value < 1e-3 * width)
    ]


# What no table of single operators shows. Read off whole runs: Qwen3-14B on H100 at 2 requests/s (pure
# decode and prefill steps), Llama-3.1-8B on H100 with 8 contexts of 20,000 tokens, 16-bit and fp8 KV.
WHOLE_MODEL = WholeModel(
    launch_gap_s=6.5e-6, graph_floor_s=2.0e-6, fused_memory_efficiency=0.8, fp8_kv_efficiency=0.7
)

# Which column tells small from large, and where the classes part.
_SIZE_CLASSES: dict[str, tuple[str, tuple[float, ...]]] = {
    "gemm": ("m", (16, 256, 2048)),
    "attn_decode": ("b", (8, 64, 512)),
    "attn_prefill": ("q", (128, 1024, 4096)),
    "moe": ("tok", (16, 256, 4096)),
    "all_reduce": ("bytes", (1 << 16, 8 << 20)),
    "nccl": ("bytes", (1 << 16, 8 << 20)),
    "small_op": ("m", (64, 1024)),
    "send_recv": ("bytes", (1 << 20,)),
}


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What a calibration run found: the JSON document, the fits, and what failed."""

    gpu: str
    document: dict[str, object]
    outcomes: tuple[FitOutcome, ...]
    failures: tuple[str, ...]
    residuals: tuple[Residual, ...]

    def render(self) -> str:
        """A table of residuals on held-out rows, then warnings and failures, one a line."""
        head = f"{'operator':<36}{'size':<18}{'rows':>7}{'median %':>10}{'p90 %':>8}{'bias %':>8}"
        lines = [f"calibration of {self.gpu}: errors on shapes that were not fitted", head]
        lines += [
            f"{r.operator:<36}{r.size_class:<18}{r.rows:>7}{r.median_pct:>10.1f}{r.p90_pct:>8.1f}{r.bias_pct:>8.1f}"
            for r in self.residuals
        ]
        lines += [f"warning: {o.operator}: {text}" for o in self.outcomes for text in o.warnings]
        lines += [f"failed: {failure}" for failure in self.failures]
        return "\n".join(lines)


def residual(operator: str, size_class: str, predicted: Floats, measured: Floats) -> Residual:
    """Median and 90th percentile of |predicted/measured - 1|, and the signed median, in percent."""
    error = predicted / measured - 1.0
    size = np.abs(error)
    return Residual(
        operator,
        size_class,
        len(measured),
        round(100.0 * float(np.median(size)), 2),
        round(100.0 * float(np.percentile(size, 90)), 2),
        round(100.0 * float(np.median(error)), 2),
    )


def residuals(table: OperatorTable, predicted: Floats) -> list[Residual]:
    """Errors of a table, over all its rows and by size class."""
    rows = [residual(table.operator, "all", predicted, table.seconds)]
    column, edges = _SIZE_CLASSES[table.operator.partition(".")[0]]
    sizes = table.columns[column]
    limits = (0.0, *edges, np.inf)
    for low, high in pairwise(limits):
        mask = (sizes > low) & (sizes <= high)
        if mask.any():
            name = f"{column} <= {high:g}" if np.isfinite(high) else f"{column} > {low:g}"
            rows.append(residual(table.operator, name, predicted[mask], table.seconds[mask]))
    return rows


def calibrate(
    source: Path | Sequence[OperatorTable],
    gpu_name: str,
    *,
    date: str,
    description: str,
    calibration_id: str | None = None,
    seed: int = 0,
) -> CalibrationReport:
    """Fit all tables that `source` (a directory, one CSV, or tables as read) has on `gpu_name`.

    One shape in five is held out of every fit and measured by it. `date` and `description` (where the rows
    come from) go into the document. An operator whose fit fails is left out and named; CalibrationError if
    all fail.
    """
    part = gpu(gpu_name)
    outcomes: list[FitOutcome] = []
    failures: list[str] = []
    rows: list[Residual] = []
    parameters: dict[str, object] = {"whole_model": dataclasses.asdict(WHOLE_MODEL)}
    tables = read_tables(source, part.name) if isinstance(source, Path) else source
    for table in _merged([table for table in tables if table.gpu == part.name]):
        fitted_rows = _fittable(table)
        try:
            shape = form(table.operator, part)
            train = fitted_rows.rows(~fitted_rows.held_out)
            outcome = fit(train if len(train) else fitted_rows, shape, seed)
        except CalibrationError as fault:
            failures.append(str(fault))
            continue
        outcomes.append(outcome)
        test = fitted_rows.rows(fitted_rows.held_out) if fitted_rows.held_out.any() else fitted_rows
        rows += residuals(test, shape.predict(test, outcome.params))
        _place(parameters, table.operator, dataclasses.asdict(outcome.params))  # type: ignore[call-overload]
    if not outcomes:
        raise CalibrationError(f"{part.name}: nothing could be fitted: " + "; ".join(failures))
    document: dict[str, object] = {
        "id": calibration_id or f"{part.name}/{date}",
        "gpu": part.name,
        "source": description,
        "date": date,
        "rows": {outcome.operator: outcome.rows for outcome in outcomes},
        "held_out": "one shape in five, by CRC-32 of its columns; residuals are of those rows",
        "warnings": [f"{o.operator}: {text}" for o in outcomes for text in o.warnings] + failures,
        "parameters": parameters,
        "residuals": [dataclasses.asdict(row) for row in rows],
    }
    return CalibrationReport(part.name, document, tuple(outcomes), tuple(failures), tuple(rows))


def save_calibration(report: CalibrationReport, path: Path) -> Path:
    """Write the calibration as JSON; `cost_models.load_calibration` reads it back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(_rounded(report.document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return path


def _rounded(value: object) -> object:
    """Six significant digits: more would only suggest a precision that no fit has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def _merged(tables: Sequence[OperatorTable]) -> list[OperatorTable]:
    """Tables of one operator from several files, joined."""
    by_operator: dict[str, list[OperatorTable]] = {}
    for table in tables:
        by_operator.setdefault(table.operator, []).append(table)
    return [_joined(group) for group in by_operator.values()]


def _joined(group: Sequence[OperatorTable]) -> OperatorTable:
    first = group[0]
    if len(group) == 1:
        return first
    return OperatorTable(
        first.operator,
        first.gpu,
        {name: np.concatenate([t.columns[name] for t in group]) for name in first.columns},
        {name: tuple(word for t in group for word in t.labels[name]) for name in first.labels},
        np.concatenate([t.seconds for t in group]),
        np.concatenate([t.held_out for t in group]),
        "; ".join(t.source for t in group),
    )


def _fittable(table: OperatorTable) -> OperatorTable:
    """Rows that the operator's formula claims: custom all-reduce only up to the size where the engine uses
    it.
    """
    if table.operator == "all_reduce":
        return table.rows(table.columns["bytes"] <= CUSTOM_ALL_REDUCE_LIMIT_BYTES)
    return scoreable(table)


def scoreable(table: OperatorTable) -> OperatorTable:
    """Rows that a formula can be held against: transfers of some bytes on a server's own links.

    Servers whose GPUs are joined in pairs have other links between nodes; their rows say nothing on a DGX.
    """
    if table.operator == "send_recv":
        own = np.array(["pairwise" not in topology for topology in table.labels["topology"]], dtype=np.bool_)
        return table.rows((table.columns["bytes"] > 0) & own)
    return table


def _place(parameters: dict[str, object], operator: str, values: dict[str, object]) -> None:
    kind, _, key = operator.partition(".")
    name = {"attn_decode": "decode", "attn_prefill": "prefill", "small_op": "small_ops"}.get(kind, kind)
    if key:
        group = parameters.setdefault(name, {})
        assert isinstance(group, dict)
        group[key] = values
    else:
        parameters[name] = values
