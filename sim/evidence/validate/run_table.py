"""The table of measured runs: one row a run of a real engine, its set-up, its load and what was measured.

Reading checks every cell of every row before anything is simulated and reports all slips at once. A blank
cell means unknown and a column may be missing altogether; what a run then lacks to be simulated is found
later (`replay.py`), row by row, because one incomplete row is no reason not to run the others.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from sim.errors import Fault, InputError
from sim.evidence.validate.lengths import LengthSpec, parse_lengths

__all__ = [
    "CHECK_GROUPS",
    "LOADS",
    "MEASURES",
    "SETUP_COLUMNS",
    "MeasuredRun",
    "RunTable",
    "metric_group",
    "parse_filter",
    "read_runs",
]

LOADS = ("poisson", "poisson_exact", "closed", "burst", "trace")
CLIENTS = ("python", "python_multi", "go", "server_metrics", "in_process")

_THROUGHPUTS = ("req_tput_rps", "in_tput_tok_s", "out_tput_tok_s", "total_tput_tok_s")
_LATENCIES = tuple(
    f"{metric}_{stat}_ms"
    for metric in ("ttft", "tpot", "itl", "e2e")
    for stat in ("mean", "p50", "p90", "p95", "p99")
)
#: Columns that hold measured numbers: throughput per second of the whole deployment, latencies in ms.
MEASURES = ("completed", "failed", *_THROUGHPUTS, *_LATENCIES)
#: What a note that begins `check:` may name as not to be scored.
CHECK_GROUPS = ("ttft", "tpot", "itl", "e2e", "tput", "all")


def metric_group(column: str) -> str:
    """The group of `CHECK_GROUPS` that a measured column belongs to."""
    return "tput" if "_tput_" in column else column.partition("_")[0]


@dataclass(frozen=True)
class MeasuredRun:
    """One row. None = unknown. Times in s, latencies in `measured` in ms, token counts of a whole replica."""

    run_id: str
    line: int = 0
    source: str = ""
    source_ref: str = ""
    quality: str = ""
    engine: str = "vllm"
    engine_version: str | None = None
    engine_gen: str | None = None
    gpu: str | None = None
    num_gpus: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    model: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    num_kv_tokens: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    speculative: str | None = None
    load: str | None = None
    rate_per_s: float | None = None
    max_concurrency: int | None = None
    num_requests: int | None = None
    duration_s: float | None = None
    warmup_requests: int = 0
    prompt: LengthSpec | None = None
    output: LengthSpec | None = None
    ignore_eos: bool | None = None
    distinct_prompts: int | None = None
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    requests_file: str | None = None
    requests_filter: str | None = None
    client: str | None = None
    measured_from: str | None = None
    assumed: tuple[str, ...] = ()
    note: str = ""
    unscored: frozenset[str] = frozenset()
    measured: Mapping[str, float] = field(default_factory=dict)

    def scores(self, column: str) -> bool:
        """Whether the measured number of `column` is there and may be judged by."""
        return column in self.measured and not {"all", metric_group(column)} & self.unscored


#: Columns that say what ran, as opposed to what was measured.
SETUP_COLUMNS = frozenset(MeasuredRun.__dataclass_fields__) - {"line", "unscored", "measured"}
_COLUMNS = SETUP_COLUMNS | set(MEASURES)


@dataclass(frozen=True)
class RunTable:
    """The rows of a run table, and the columns that it has but nothing here reads."""

    runs: tuple[MeasuredRun, ...]
    unread_columns: tuple[str, ...]


def parse_filter(text: str) -> tuple[tuple[str, str | tuple[int, int]], ...]:
    """The conditions of a `requests_filter`: `column=value`, `column=LO..HI` (both ends in)."""
    conditions: list[tuple[str, str | tuple[int, int]]] = []
    for part in text.split(";"):
        column, equals, value = part.strip().partition("=")
        if not equals or not column or not value:
            raise ValueError(f"{part.strip()!r} is not column=value or column=LO..HI")
        low, dots, high = value.partition("..")
        if dots and low.isdigit() and high.isdigit():
            conditions.append((column, (int(low), int(high))))
        else:
            conditions.append((column, value))
    return tuple(conditions)


def read_runs(path: Path) -> RunTable:
    """Every row of a run table, in order. InputError holds one `file:line` fault for each slip found."""
    faults: list[Fault] = []
    runs: list[MeasuredRun] = []
    seen: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError([Fault(str(path), None, error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        raise InputError([Fault(str(path), None, f"not UTF-8 text ({error.reason})")]) from None
    with io.StringIO(text, newline="") as handle:
        reader = csv.reader(handle)
        header = next(reader, [])
        faults += _header_faults(path, header)
        before = reader.line_num
        for cells in reader:
            line, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                faults.append(
                    Fault(f"{path}:{line}", None, f"{len(cells)} cells under {len(header)} columns")
                )
                continue
            row = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
            values, slips = _convert(row)
            faults += [Fault(f"{path}:{line}", column, message) for column, message in slips]
            run_id = str(values.setdefault("run_id", f"row{line}"))
            if run_id in seen:
                faults.append(
                    Fault(f"{path}:{line}", "run_id", f"{run_id!r} stands on line {seen[run_id]} already")
                )
            seen.setdefault(run_id, line)
            values.setdefault("source", path.stem)
            if not slips:
                runs.append(MeasuredRun(line=line, **values))  # type: ignore[arg-type]
    if faults:
        raise InputError(faults)
    return RunTable(tuple(runs), tuple(name for name in header if name not in _COLUMNS))


def with_columns(run: MeasuredRun, cells: Mapping[str, str]) -> MeasuredRun:
    """The run with some of its cells written anew; names that are no set-up column are left alone.

    InputError if a cell is no value of its column.
    """
    given = {name: cell for name, cell in cells.items() if name in SETUP_COLUMNS and cell}
    values, slips = _convert(given)
    if slips:
        raise InputError([Fault(None, column, message) for column, message in slips])
    del values["measured"]
    return replace(run, **values)  # type: ignore[arg-type]


def _header_faults(path: Path, header: list[str]) -> list[Fault]:
    if not _COLUMNS & set(header):
        return [Fault(f"{path}:1", None, "no known column: the first line names the columns of a run table")]
    twice = sorted(name for name in set(header) if header.count(name) > 1)
    return [Fault(f"{path}:1", name, "the column stands twice") for name in twice]


def _convert(row: dict[str, str]) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Cells to values, and the (column, message) of each that is no value of its column."""
    values: dict[str, object] = {}
    measured: dict[str, float] = {}
    slips: list[tuple[str, str]] = []
    for column, cell in row.items():
        try:
            if column in MEASURES:
                measured[column] = _non_negative(cell)
            elif column in _READERS:
                values[column] = _READERS[column](cell)
            elif column in _COLUMNS:
                values[column] = cell
        except ValueError as error:
            slips.append((column, str(error)))
    note = cast(str, values.get("note", ""))
    if note.startswith("check:"):
        groups = frozenset(note.removeprefix("check:").partition(";")[0].split())
        unknown = sorted(groups - set(CHECK_GROUPS))
        if unknown:
            slips.append(("note", f"check: names {', '.join(unknown)}; it may name {' '.join(CHECK_GROUPS)}"))
        values["unscored"] = groups
    values["measured"] = measured
    return values, slips


def _non_negative(cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        raise ValueError(f"{cell!r} is not a number") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{cell!r} is not a number of at least 0")
    return number


def _positive(cell: str) -> float:
    number = _non_negative(cell)
    if number == 0:
        raise ValueError(f"{cell!r} is not above 0")
    return number


def _count(cell: str) -> int:
    number = _non_negative(cell)
    if number != int(number):
        raise ValueError(f"{cell!r} is not a whole number")
    return int(number)


def _positive_count(cell: str) -> int:
    number = _count(cell)
    if number == 0:
        raise ValueError(f"{cell!r} is not above 0")
    return number


def _flag(cell: str) -> bool:
    if cell in ("0", "1", "0.0", "1.0"):
        return cell.startswith("1")
    raise ValueError(f"{cell!r} is not 0 or 1")


def _fraction(cell: str) -> float:
    number = _positive(cell)
    if number > 1:
        raise ValueError(f"{cell!r} is not a fraction of at most 1")
    return number


def _one_of(*names: str) -> Callable[[str], str]:
    def read(cell: str) -> str:
        if cell not in names:
            raise ValueError(f"{cell!r} is none of {', '.join(names)}")
        return cell

    return read


def _checked_filter(cell: str) -> str:
    parse_filter(cell)
    return cell


_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("num_gpus", "tp", "pp", "dp", "max_num_seqs", "max_num_batched_tokens"), _positive_count
    ),
    **dict.fromkeys(("max_model_len", "num_kv_tokens", "block_size", "max_concurrency"), _positive_count),
    **dict.fromkeys(("num_requests", "distinct_prompts", "prefix_groups"), _positive_count),
    **dict.fromkeys(("warmup_requests", "shared_prefix_tokens"), _count),
    **dict.fromkeys(("prefix_caching", "chunked_prefill", "async_scheduling", "ignore_eos"), _flag),
    **dict.fromkeys(("rate_per_s", "duration_s"), _positive),
    **dict.fromkeys(("prompt", "output"), parse_lengths),
    "gpu_memory_utilization": _fraction,
    "assumed": lambda cell: tuple(cell.split()),
    "requests_filter": _checked_filter,
    "load": _one_of(*LOADS),
    "client": _one_of(*CLIENTS),
    "measured_from": _one_of("all", "after_warmup"),
}
