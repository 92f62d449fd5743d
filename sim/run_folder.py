"""The folder a run leaves: `runs/<scenario>-<hash8>/`, named by what was asked, so equal questions meet.

`requests.csv`, `steps.csv` and `preemptions.csv` have a row for each request, step and preemption. The tables
are written to a temporary folder beside it, which takes the old one's place when complete: an
interrupted run leaves the old results whole. The report comes afterwards, into the folder in place: whatever
goes wrong with a figure, the tables stand. For the same scenario, seed and version every byte is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import Fault, InputError, input_error
from sim.scenario import Scenario, load_scenario
from sim.scenario.resolved import dump_resolved

if TYPE_CHECKING:
    import pandas as pd

    from sim.plots import RunPlots
    from sim.simulation import RunResult
    from sim.summary import Json

_CHUNK = 65_536
_SCENARIO, _SUMMARY, _REQUESTS, _STEPS = "scenario.resolved.yaml", "summary.json", "requests.csv", "steps.csv"
_PREEMPTIONS = "preemptions.csv"
_ROUNDING_S = 2e-9


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run as its folder holds it: all that reports, figures and traces need.

    `preemption_times` is None for a folder of a version that did not write it.
    """

    folder: Path
    scenario: Scenario
    summary: Mapping[str, Json]
    requests: pd.DataFrame
    steps: pd.DataFrame
    preemption_times: pd.DataFrame | None = None

    @property
    def plot(self) -> RunPlots:
        """The run's figures, drawn when asked for."""
        from sim.plots import RunPlots

        return RunPlots(self)

    def _repr_html_(self) -> str:
        from sim.plots import summary_html

        return summary_html(self.summary)


def saved(result: RunResult, folder: Path) -> SavedRun:
    """What `load` would read back of a result that `write` has put into this folder."""
    return SavedRun(
        folder, result.resolved, result.summary, result.requests, result.steps, result.preemption_times
    )


def folder_name(scenario: Scenario) -> str:
    """`<scenario>-<hash8>`: eight hex digits of everything that the results depend on."""
    told = f"{version('dryserve')}\n{dump_resolved(scenario)}"
    return f"{scenario.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def write(result: RunResult, root: Path | str = "runs") -> Path:
    """Write scenario, summary and tables; return the folder. An older run of the same name is replaced.

    Raises `InputError` if the folder cannot be written.
    """
    root = Path(root)
    folder = root / folder_name(result.scenario)
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
    except OSError as error:
        raise input_error(f"cannot be written: {_reason(error)}", where=str(root)) from None
    try:
        _write_tables(result, draft)
        draft.chmod(0o755)
        put_in_place(draft, folder)
    except OSError as error:
        raise input_error(f"cannot be written: {_reason(error)}", where=str(folder)) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def load(folder: Path | str) -> SavedRun:
    """Read a run back; raises `InputError`, naming the file, if the folder does not hold a run."""
    import pandas as pd

    folder = Path(folder)
    if not folder.is_dir():
        raise input_error("is no run folder: no such folder", where=str(folder))
    missing = [name for name in (_SCENARIO, _SUMMARY, _REQUESTS, _STEPS) if not (folder / name).is_file()]
    if missing:
        raise input_error(f"is no run folder: {', '.join(missing)} missing", where=str(folder))
    scenario = load_scenario(folder / _SCENARIO)
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
        requests, steps = pd.read_csv(folder / _REQUESTS), pd.read_csv(folder / _STEPS)
        has_preemptions = (folder / _PREEMPTIONS).is_file()
        preemptions = pd.read_csv(folder / _PREEMPTIONS) if has_preemptions else None
    except (OSError, ValueError, RecursionError) as error:
        raise input_error(f"cannot be read: {error}", where=str(folder)) from None
    if not isinstance(summary, dict) or not isinstance(summary.get("notes"), list):
        raise input_error("is not the summary of a run: no notes in it", where=str(folder / _SUMMARY))
    faults = [
        *_table_faults(requests, "request_id", ("replica", "arrival_s", "output_tokens"), folder / _REQUESTS),
        *_table_faults(steps, "t_s", ("replica", "step_time_s"), folder / _STEPS),
    ]
    if preemptions is not None:
        faults += _table_faults(preemptions, "request_id", ("preempted_s",), folder / _PREEMPTIONS)
    if faults:
        raise InputError(faults)
    run = SavedRun(folder, scenario, summary, requests, steps, preemptions)
    faults = list(_cut_short(run))
    if faults:
        raise InputError(faults)
    return run


load_run = load
"""The name under which `sim` offers it."""


def load_all(folders: Sequence[Path]) -> list[SavedRun]:
    """Read several runs back; raises `InputError` with the faults of all."""
    runs, faults = [], []
    for folder in folders:
        try:
            runs.append(load(folder))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return runs


def _table_faults(table: pd.DataFrame, first: str, others: tuple[str, ...], path: Path) -> Iterator[Fault]:
    """What shows that a table is not one that a run has written."""
    for name in (first, *others):
        if name not in table:
            yield Fault(f"{path}:1", name, "missing column")
        elif len(table) and table[name].dtype.kind not in "iuf":
            yield Fault(str(path), name, "holds something that is not a number")


def _cut_short(run: SavedRun) -> Iterator[Fault]:
    """What shows that a table is not whole: a last line without an end, or rows that others know of."""
    named = [(_REQUESTS, run.requests), (_STEPS, run.steps)]
    named += [] if run.preemption_times is None else [(_PREEMPTIONS, run.preemption_times)]
    for name, table in named:
        with (run.folder / name).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 1))
            if file.read(1) != b"\n":
                yield Fault(
                    f"{run.folder / name}:{len(table) + 1}", None, "is cut short: its last line has no end"
                )
    counts = {
        name: run.summary.get(name) for name in ("num_requests", "num_not_sent", "num_steps", "warmup_s")
    }
    for key, count in counts.items():
        if not isinstance(count, (int, float)):
            yield Fault(str(run.folder / _SUMMARY), key, "missing or not a number")
            return
    sent = int(counts["num_requests"]) - int(counts["num_not_sent"])  # type: ignore[arg-type]
    if len(run.requests) != sent:
        yield _rows_missing(run.folder / _REQUESTS, len(run.requests), f"{sent:,} requests were sent")
    if len(run.steps):
        # Times are rounded, so a step that began with the end of the warm-up may lie on either side of it.
        start_s, warmup_s = run.steps["t_s"] - run.steps["step_time_s"], float(counts["warmup_s"])  # type: ignore[arg-type]
        fewest = int((start_s >= warmup_s + _ROUNDING_S).sum())
        most = int((start_s >= warmup_s - _ROUNDING_S).sum())
        steps = int(counts["num_steps"])  # type: ignore[arg-type]
        if not fewest <= steps <= most:
            yield _rows_missing(run.folder / _STEPS, most, f"{steps:,} steps began after the warm-up")
    if run.preemption_times is not None and "num_preemptions" in run.requests:
        preemptions = int(run.requests["num_preemptions"].sum())
        if len(run.preemption_times) != preemptions:
            said = f"{preemptions:,} preemptions are counted in {_REQUESTS}"
            yield _rows_missing(run.folder / _PREEMPTIONS, len(run.preemption_times), said)


def _rows_missing(path: Path, found: int, said: str) -> Fault:
    return Fault(str(path), None, f"is not whole: it has {found:,} of them, but {said}")


def _write_tables(result: RunResult, folder: Path) -> None:
    (folder / _SCENARIO).write_text(dump_resolved(result.scenario), encoding="utf-8")
    text = json.dumps(result.summary, indent=2, allow_nan=False, ensure_ascii=False)
    (folder / _SUMMARY).write_text(text + "\n", encoding="utf-8")
    result.requests.to_csv(folder / _REQUESTS, index=False, lineterminator="\n")
    _write_rows(result.steps, folder / _STEPS)
    result.preemption_times.to_csv(folder / _PREEMPTIONS, index=False, lineterminator="\n")


def _write_rows(table: pd.DataFrame, path: Path) -> None:
    """The bytes of `to_csv` for a table without gaps or commas, in half the time: steps come in millions."""
    row = ",".join(["%s"] * len(table.columns)) + "\n"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(table.columns) + "\n")
        for start in range(0, len(table), _CHUNK):
            chunk = table.iloc[start : start + _CHUNK]
            file.writelines(map(row.__mod__, zip(*(chunk[name].tolist() for name in table), strict=True)))


def put_in_place(draft: Path, folder: Path) -> None:
    """Put the draft in place of the folder; what is at its place stays whole until the draft is there."""
    if not folder.exists():
        draft.rename(folder)
        return
    old = draft.with_name(draft.name + ".old")
    folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _reason(error: OSError) -> str:
    return (error.strerror or os.strerror(error.errno or 0)).lower()
