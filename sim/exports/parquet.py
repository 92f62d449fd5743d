"""The tables of a run folder as Parquet files, which load many times faster than CSV. Needs pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.simulation import RunResult


def write(result: RunResult, folder: Path) -> list[Path]:
    """Write `requests.parquet`, `steps.parquet` and `preemptions.parquet`: same rows, same columns."""
    tables = {"requests": result.requests, "steps": result.steps, "preemptions": result.preemption_times}
    files = []
    for name, table in tables.items():
        files.append(folder / f"{name}.parquet")
        table.to_parquet(files[-1], engine="pyarrow", index=False)
    return files
