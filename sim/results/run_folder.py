"""The folder a run leaves: `runs/<scenario>-<hash8>/`, named by what was asked, so equal questions meet.

`requests.csv`, `steps.csv` and `preemptions.csv` have a row for each request, step and preemption. The tables
are written to a temporary folder beside it, which takes the old one's place when complete: an
interrupted run leaves the old results whole. What other commands have put there (explanations, traces,
exports) is of the same run and is kept. The report comes afterwards, into the folder in place: whatever goes
wrong with a figure, the tables stand. For the same scenario, seed and version every byte is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import Fault, InputError, input_error, os_reason
from sim.results.run_tables import write_csv
from sim.scenario import Scenario, load_scenario
from sim.version import dryserve_version

if TYPE_CHECKING:
    import pandas as pd

    from sim.results.plots import RunPlots
    from sim.simulation import RunResult
    from sim.values import Json

_SCENARIO = "scenario.resolved.yaml"
SUMMARY = "summary.json"
REQUESTS, STEPS, PREEMPTIONS = "requests.csv", "steps.csv", "preemptions.csv"
COLUMNS = {
    REQUESTS: "request_id class session replica arrival_s first_scheduled_s first_token_s last_token_s "
    "prompt_tokens output_tokens cached_tokens num_preemptions recomputed_tokens stalled_s status",
    STEPS: "end_s replica step_time_s decode_tokens prefill_tokens recompute_tokens num_running num_waiting "
    "kv_used_blocks kv_cached_blocks num_preemptions bound",
    PREEMPTIONS: "request_id replica preempted_s resumed_s next_token_s",
}
"""What every table must have; some runs have more."""
_TEXTS = ("class", "status", "bound")
_STATUSES = ("in_flight", "finished", "aborted", "rejected")
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
        from sim.results.plots import RunPlots

        return RunPlots(self)

    def _repr_html_(self) -> str:
        from sim.results.plots import summary_html

        return summary_html(self.summary)


def saved(result: RunResult, folder: Path) -> SavedRun:
    """What `load` would read back of a result that `write` has put into this folder."""
    return SavedRun(
        folder, result.resolved, result.summary, result.requests, result.steps, result.preemption_times
    )


def folder_name(scenario: Scenario) -> str:
    """`<scenario>-<hash8>`: eight hex digits of everything that the results depend on."""
    return _folder_name(scenario.name, scenario.dump_resolved())


def _folder_name(name: str, resolved: str) -> str:
    determined_by = f"{dryserve_version()}\n{resolved}"
    return f"{name}-{hashlib.sha256(determined_by.encode()).hexdigest()[:8]}"


def write(result: RunResult, root: Path | str = "runs") -> Path:
    """Write scenario, summary and tables; return the folder. Those of an older run of the same name are
    replaced; everything else in its folder stays.

    Raises `InputError` if the folder cannot be written.
    """
    root, resolved = Path(root), result.scenario.dump_resolved()
    folder = root / _folder_name(result.scenario.name, resolved)
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
    except OSError as error:
        raise input_error(f"cannot be written: {os_reason(error)}", where=str(root)) from None
    try:
        (draft / _SCENARIO).write_text(resolved, encoding="utf-8")
        _write_tables(result, draft)
        draft.chmod(0o755)
        _carry_over(folder, draft)
        put_in_place(draft, folder)
    except OSError as error:
        raise input_error(f"cannot be written: {os_reason(error)}", where=str(folder)) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def load(folder: Path | str) -> SavedRun:
    """Read a run back; raises `InputError`, naming the file, if the folder does not hold a run."""
    import pandas as pd

    folder = Path(folder)
    if not folder.is_dir():
        raise input_error("is no run folder: no such folder", where=str(folder))
    missing = [name for name in (_SCENARIO, SUMMARY, REQUESTS, STEPS) if not (folder / name).is_file()]
    if missing:
        raise input_error(f"is no run folder: {', '.join(missing)} missing", where=str(folder))
    scenario = load_scenario(folder / _SCENARIO)
    names = [REQUESTS, STEPS, *([PREEMPTIONS] if (folder / PREEMPTIONS).is_file() else [])]
    readers: dict[str, Callable[[Path], Any]] = {SUMMARY: _read_summary, **dict.fromkeys(names, pd.read_csv)}
    read, faults = {}, []
    for name, reader in readers.items():
        try:
            read[name] = reader(folder / name)
        except (OSError, ValueError, RecursionError) as error:
            faults.append(Fault(str(folder / name), None, f"cannot be read: {_damage(error)}"))
    if faults:
        raise InputError(faults)
    summary, requests = read[SUMMARY], read[REQUESTS]
    steps = read[STEPS].rename(columns={"t_s": "end_s"})  # the name of older versions
    preemptions = read.get(PREEMPTIONS)
    if not isinstance(summary, dict) or not isinstance(summary.get("notes"), list):
        raise input_error("is not the summary of a run: no notes in it", where=str(folder / SUMMARY))
    tables = {REQUESTS: requests, STEPS: steps}
    tables |= {} if preemptions is None else {PREEMPTIONS: preemptions}
    faults = [fault for name, table in tables.items() for fault in _table_faults(table, folder / name)]
    faults = faults or list(_row_faults(folder, summary, tables))
    if faults:
        raise InputError(faults)
    return SavedRun(folder, scenario, summary, requests, steps, preemptions)


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


def _read_summary(path: Path) -> object:
    return json.loads(path.read_text(encoding="utf-8"))


def _damage(error: Exception) -> str:
    """What is wrong with a file that could not be read, in a few words."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text: byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, OSError):
        return os_reason(error)
    message = " ".join(str(error).split())
    return f"{message[:1].lower()}{message[1:]}"


def _write_tables(result: RunResult, folder: Path) -> None:
    text = json.dumps(result.summary, indent=2, allow_nan=False, ensure_ascii=False)
    (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    write_csv(result.request_columns(), folder / REQUESTS)
    write_csv(result.step_columns(), folder / STEPS)
    write_csv(result.preemption_columns(), folder / PREEMPTIONS)


def _carry_over(folder: Path, draft: Path) -> None:
    """Give the draft all that only the folder has: files as further links to them, else as copies."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        into = draft / path.name
        if into.exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, into, symlinks=True, copy_function=_link)
        else:
            _link(path, into)


def _link(source: str | Path, into: str | Path) -> None:
    try:
        os.link(source, into, follow_symlinks=False)
    except OSError:  # no such links in this file system
        shutil.copy2(source, into, follow_symlinks=False)


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


def _table_faults(table: pd.DataFrame, path: Path) -> Iterator[Fault]:
    """What is wrong with one table: its end, its columns, what they hold."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read(1) != b"\n":
            yield Fault(f"{path}:{len(table) + 1}", None, "is cut short: its last line has no end")
    for name in COLUMNS[path.name].split():
        if name not in table:
            yield Fault(f"{path}:1", name, "missing column")
        elif name not in _TEXTS and len(table) and table[name].dtype.kind not in "iuf":
            yield Fault(str(path), name, "holds something that is not a number")
        elif name == "status" and not (known := table[name].isin(_STATUSES)).all():
            row = int((~known).to_numpy().argmax())
            yield Fault(f"{path}:{row + 2}", name, f"{table[name].iloc[row]!r} is no status of a request")


def _row_faults(
    folder: Path, summary: Mapping[str, object], tables: Mapping[str, pd.DataFrame]
) -> Iterator[Fault]:
    """Rows that are missing, because the summary or another table counts more (or fewer) of them.

    `tables` by file name. A run may have kept no steps at all: a table without rows is accepted.
    """
    counts: dict[str, float] = {}
    for key in ("num_requests", "num_not_sent", "num_steps", "warmup_s"):
        value = summary.get(key)
        if not isinstance(value, (int, float)):
            yield Fault(str(folder / SUMMARY), key, "missing or not a number")
            return
        counts[key] = value
    requests, steps = tables[REQUESTS], tables[STEPS]
    sent = int(counts["num_requests"] - counts["num_not_sent"])
    if len(requests) != sent:
        yield _missing(folder / REQUESTS, len(requests), f"{sent:,} requests were sent")
    if len(steps):
        # Times are rounded, so a step that began with the end of the warm-up may lie on either side of it.
        start_s = steps["end_s"] - steps["step_time_s"]
        fewest = int((start_s >= counts["warmup_s"] + _ROUNDING_S).sum())
        most = int((start_s >= counts["warmup_s"] - _ROUNDING_S).sum())
        if not fewest <= counts["num_steps"] <= most:
            said = f"{int(counts['num_steps']):,} steps began after the warm-up"
            yield _missing(folder / STEPS, most, said)
    if PREEMPTIONS in tables:
        preemptions = int(requests["num_preemptions"].sum())
        if len(tables[PREEMPTIONS]) != preemptions:
            said = f"{preemptions:,} preemptions are counted in {REQUESTS}"
            yield _missing(folder / PREEMPTIONS, len(tables[PREEMPTIONS]), said)


def _missing(path: Path, found: int, said: str) -> Fault:
    return Fault(str(path), None, f"is not whole: it has {found:,} rows, but {said}")
