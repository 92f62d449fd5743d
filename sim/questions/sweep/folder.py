"""The folder of a sweep: `sweeps/<scenario>-<hash8>/`, named by what was asked; whole or not there.

`base.resolved.yaml`, `sweep.json` (what varied, the answer, provenance), `points.csv` (one row a cell, with
intervals), `replications.csv` (one row a run) and `figures/`. For equal sweeps every byte is equal.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import input_error
from sim.questions.sweep.answer import Capacity
from sim.results.run_folder import put_in_place
from sim.values import plain_json
from sim.version import dryserve_version

if TYPE_CHECKING:
    from sim.questions.sweep.sweep import Sweep
    from sim.statistics.intervals import Interval
    from sim.values import Json

_PROVENANCE = ("mirrors", "dryserve_version", "calibration_id", "error_band", "loop", "warmup_s", "horizon_s")


def write(sweep: Sweep, root: Path) -> Path:
    """Write the tables; an older sweep of the same name is replaced. Raises `InputError` if that fails."""
    check_writable(root)
    told = json.dumps({**head(sweep), **_prices(sweep)}, sort_keys=True)
    text = f"{dryserve_version()}\n{told}\n{sweep.base.dump_resolved()}"
    folder = root / f"{sweep.base.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
        try:
            _write(sweep, draft)
            draft.chmod(0o755)
            put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise input_error(f"cannot be written: {_reason(error)}", where=str(folder)) from None
    return folder


def check_writable(root: Path) -> None:
    """Raise `InputError` if no folder can be made below `root`: better before the runs than after."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".try.", dir=root)).rmdir()
    except OSError as error:
        raise input_error(f"cannot be written: {_reason(error)}", where=str(root)) from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _write(sweep: Sweep, folder: Path) -> None:
    (folder / "base.resolved.yaml").write_text(sweep.base.dump_resolved(), encoding="utf-8")
    text = json.dumps(as_json(sweep), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / "sweep.json").write_text(text + "\n", encoding="utf-8")
    sweep.summary.to_csv(folder / "points.csv", index=False, lineterminator="\n")
    sweep.table.to_csv(folder / "replications.csv", index=False, lineterminator="\n")


def draw(sweep: Sweep, folder: Path) -> dict[str, str]:
    """Draw the figures into the folder, which has the tables by now; say by name which failed, and why."""
    from sim.figures.style import blank_figure, save_png
    from sim.questions.sweep.pictures import SIZES_IN, figures

    failures = {}
    for name, plot in figures(sweep).items():
        try:
            (folder / "figures").mkdir(exist_ok=True)
            figure = blank_figure(*SIZES_IN.get(name, ()))
            plot(figure)
            save_png(figure, folder / "figures" / f"{name}.png")
        except Exception as error:  # whatever went wrong, the other figures are still wanted
            failures[name] = f"{type(error).__name__}: {error}"
    return failures


def head(sweep: Sweep) -> dict[str, Json]:
    """What was asked: the fields that varied, their values cell by cell, and the seeds."""
    return {
        "paths": list(sweep.paths),
        "cells": [dict(cell.setting) for cell in sweep.cells],
        "seeds": sorted({o.point.scenario.seed for outcomes in sweep.runs.outcomes for o in outcomes}),
        "two_stages": sweep.runs.first_stage is not None,
    }


def _prices(sweep: Sweep) -> dict[str, Json]:
    """What was said of money; nothing if nothing was."""
    if sweep.prices is None:
        return {}
    return {"prices": dict(sweep.prices.per_gpu_hour), "currency": sweep.prices.currency}


def as_json(sweep: Sweep) -> dict[str, Json]:
    """The whole sweep but its single runs, as plain data."""
    rows: list[Json] = [
        {str(key): plain_json(value) for key, value in row.items()}
        for row in sweep.summary.to_dict("records")
    ]
    return {
        **head(sweep),
        "slo": {
            key: {"metric": t.metric, "limit_s": t.limit_s, "percentile": t.percentile}
            for key, t in sweep.targets.items()
        },
        "capacities": [_capacity(found) for found in sweep.capacities],
        "best": None
        if sweep.best is None
        else {
            "cell": sweep.best.row,
            "setting": {path: plain_json(value) for path, value in sweep.best.setting.items()},
            "by": sweep.best.measure,
            "as_good": sweep.best.equals,
            "of": sweep.best.of,
            "vllm_flags": sweep.flags,
        },
        "notes": list(sweep.notes),
        "prices": None if sweep.prices is None else dict(sweep.prices.per_gpu_hour),
        "unreached": {str(cell): told for cell, told in sweep.runs.unreached.items()},
        "points": rows,
        "provenance": {key: sweep.facts.get(key) for key in _PROVENANCE},
    }


def _capacity(found: Capacity) -> dict[str, Json]:
    return {
        "label": found.label,
        "rate_per_s": _interval(found.joint),
        "by_target": {key: _interval(one) for key, one in found.by_target.items()},
        "at_least": found.at_least,
        "not_kept_at": found.below,
        "first_to_break": found.first_to_break,
    }


def _interval(found: Interval) -> dict[str, Json]:
    ends = {"estimate": found.estimate, "low": found.low, "high": found.high}
    return {key: plain_json(value) for key, value in ends.items()}
