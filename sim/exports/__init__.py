"""A run's results in the forms that other tools read; `dryserve run --export` writes them into its folder.

Each form is a function of a `RunResult` and a folder that returns the files it wrote. The bytes depend on the
run alone: where a form wants a date, it is the simulated clock's zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import Fault, InputError, did_you_mean

if TYPE_CHECKING:
    from sim.simulation import RunResult

__all__ = ["FORMATS", "check_formats", "write_exports"]

FORMATS = ("vllm", "parquet", "openmetrics")
"""vllm: the result of `vllm bench serve --save-result --save-detailed`; parquet: the tables; openmetrics: a
server's /metrics at the end of the run."""


def check_formats(names: Sequence[str]) -> None:
    """Raise `InputError` if a format is unknown or lacks a library: to be called before a run, not after."""
    faults = []
    for name in names:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            faults.append(
                Fault("--export", name, f"no such format; there are {known}{did_you_mean(name, FORMATS)}")
            )
        elif name == "parquet" and find_spec("pyarrow") is None:
            faults.append(Fault("--export", name, "needs pyarrow: pip install 'dryserve[parquet]'"))
    if faults:
        raise InputError(faults)


def write_exports(result: RunResult, folder: Path, names: Sequence[str]) -> list[Path]:
    """Write each named format into the folder, which exists; return the files."""
    check_formats(names)
    files: list[Path] = []
    for name in dict.fromkeys(names):
        write: Callable[[RunResult, Path], list[Path]] = import_module(f".{name}", __name__).write
        files += write(result, folder)
    return files
