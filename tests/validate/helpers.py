"""Hand-made run tables for the tests of validation."""

from __future__ import annotations

import gzip
from pathlib import Path

from sim.evidence.validate.run_table import MeasuredRun, read_runs
from sim.evidence.validate.sent_requests import SentRequests, sent_requests

#: A row that says what a run needs; a test states only what it changes.
PLAIN = {
    "run_id": "plain",
    "engine_version": "0.16.0",
    "engine_gen": "V1",
    "gpu": "h100-sxm",
    "model": "meta-llama/Llama-3.1-8B",
    "load": "burst",
    "num_requests": "4",
    "prompt": "fixed:100",
    "output": "fixed:10",
}


def write_runs(folder: Path, *rows: dict[str, str]) -> Path:
    """A run table of these rows in `folder`; its columns are all that any row names."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)] + [",".join(f'"{row.get(name, "")}"' for name in columns) for row in rows]
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def one_run(folder: Path, **changes: str) -> MeasuredRun:
    """The plain row with some cells changed, read back from a file."""
    return read_runs(write_runs(folder, PLAIN | changes)).runs[0]


def write_requests(folder: Path, name: str, text: str) -> None:
    """A requests file beside the run table, compressed where its name says so."""
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def sent(folder: Path, **changes: str) -> SentRequests:
    """The requests of the plain row with some cells changed."""
    return sent_requests(one_run(folder, **changes))
