"""How good a calibration is on tables that it may never have seen, beside the roofline of the datasheet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cost_models.calibration import Calibration, Residual, calibration
from cost_models.fit.calibrate import residual, scoreable
from cost_models.fit.forms import datasheet, predict
from cost_models.fit.tables import OperatorTable, holds_table, read_tables
from cost_models.operators.roofline import Floats


@dataclass(frozen=True, slots=True)
class CheckRow:
    """Errors on one operator of one GPU, of the calibration and of the datasheet roofline."""

    gpu: str
    calibrated: Residual
    datasheet_median_pct: float
    measured_here: bool


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Errors by GPU and operator, and by operator over all GPUs."""

    rows: tuple[CheckRow, ...]
    totals: tuple[CheckRow, ...]
    skipped: tuple[str, ...]

    def render(self) -> str:
        """One line an operator and GPU; the last lines are totals by kind of operator."""
        head = f"{'operator':<36}{'gpu':<16}{'rows':>8}{'median %':>10}{'p90 %':>8}{'bias %':>8}"
        head += f"{'datasheet %':>13}"
        lines = [head, *(_line(row) for row in self.rows), "all GPUs:", *(_line(row) for row in self.totals)]
        lines += [f"skipped: {text}" for text in self.skipped]
        if any(not row.measured_here for row in self.rows):
            lines.append("* not measured on this GPU: efficiencies borrowed from a related one")
        return "\n".join(lines)


def _line(row: CheckRow) -> str:
    r = row.calibrated
    name = r.operator + ("" if row.measured_here else " *")
    return (
        f"{name:<36}{row.gpu:<16}{r.rows:>8}{r.median_pct:>10.1f}{r.p90_pct:>8.1f}{r.bias_pct:>8.1f}"
        f"{row.datasheet_median_pct:>13.1f}"
    )


def check_calibration(
    directory: Path, *, held_out_only: bool = False, fitted: Calibration | None = None
) -> CheckReport:
    """Compare calibrations with every table in `directory` (or in one CSV file).

    Each GPU is judged by its shipped calibration, or by `fitted`, which then stands for its own GPU. With
    `held_out_only`, only the shapes that this project's fits leave out count: use it on tables that were
    fitted.
    """
    rows: list[CheckRow] = []
    skipped = _unread(directory)
    pooled: dict[str, list[tuple[Floats, Floats, Floats]]] = {}
    for table in read_tables(directory, fitted.gpu if fitted else None):
        if held_out_only:
            table = table.rows(table.held_out)
        table = scoreable(table)
        if not len(table):
            continue
        judge = fitted or calibration(table.gpu)
        predicted = predict(table, judge)
        if predicted is None:
            skipped.append(f"{table.operator} on {table.gpu}: the calibration has no parameters for it")
            continue
        sheet = datasheet(table)
        rows.append(_row(table.operator, table.gpu, predicted, table.seconds, sheet, _is_own(judge, table)))
        kind = table.operator.partition(".")[0]
        pooled.setdefault(kind, []).append((predicted, table.seconds, sheet))
    totals = []
    for kind, parts in pooled.items():
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        totals.append(_row(kind, "all", joined[0], joined[1], joined[2], True))
    return CheckReport(tuple(rows), tuple(totals), tuple(skipped))


def _unread(directory: Path) -> list[str]:
    """CSV files that hold no table of operator times."""
    files = sorted(directory.glob("*.csv")) if directory.is_dir() else []
    return [f"{path.name}: no operator times in its columns" for path in files if not holds_table(path)]


def _row(operator: str, part: str, predicted: Floats, measured: Floats, sheet: Floats, own: bool) -> CheckRow:
    plain = residual(operator, "all", sheet, measured)
    return CheckRow(part, residual(operator, "all", predicted, measured), plain.median_pct, own)


def _is_own(judge: Calibration, table: OperatorTable) -> bool:
    kind, _, key = table.operator.partition(".")
    name = {"attn_decode": "decode", "attn_prefill": "prefill", "small_op": "small_ops"}.get(kind, kind)
    return judge.is_measured and (f"{name}.{key}" if key else name) not in judge.borrowed
