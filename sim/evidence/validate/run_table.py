"""The table of measured runs: one row a run of a real engine, its set-up, its load and what was measured.

Reading checks every cell of every row before anything is simulated and reports all slips at once. A blank
cell means unknown and a column may be missing altogether; what a run then lacks to be simulated is found
later (`mapping.py`), row by row, because one incomplete row is no reason not to run the others.
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
from sim.evidence.validate.requests_file import RequestRows, parse_filter
from sim.scenario.distributions import Fixed, Marginal, Quantiles, Uniform

__all__ = [
    "CHECK_GROUPS",
    "LATENCIES",
    "LOADS",
    "MEASURES",
    "SETUP_COLUMNS",
    "THROUGHPUTS",
    "MeasuredLengths",
    "MeasuredRun",
    "RunTable",
    "metric_group",
    "parse_lengths",
    "read_runs",
    "with_columns",
]

LOADS = ("poisson", "poisson_exact", "closed", "burst", "trace")
CLIENTS = ("python", "python_multi", "go", "server_metrics", "in_process")

THROUGHPUTS = ("req_tput_rps", "in_tput_tok_s", "out_tput_tok_s", "total_tput_tok_s")
LATENCIES = tuple(
    f"{metric}_{stat}_ms"
    for metric in ("ttft", "tpot", "itl", "e2e")
    for stat in ("mean", "p50", "p90", "p95", "p99")
)
#: Columns that hold measured numbers: throughput per second of the whole deployment, latencies in ms.
MEASURES = ("completed", "failed", *THROUGHPUTS, *LATENCIES)
#: What a note that begins `check:` may name as not to be scored.
CHECK_GROUPS = ("ttft", "tpot", "itl", "e2e", "tput", "all")


def metric_group(column: str) -> str:
    """The group of `CHECK_GROUPS` that a measured column belongs to."""
    return "tput" if "_tput_" in column else column.partition("_")[0]


@dataclass(frozen=True)
class MeasuredLengths:
    """What is known of the prompt or the output lengths of a run.

    Each request draws one of `parts` by weight, then its length from that part; without parts the lengths
    stand in the run's requests. `only_mean` says that every request gets the mean, because nothing else is
    known.
    """

    parts: tuple[Marginal, ...] = ()
    weights: tuple[float, ...] = ()
    only_mean: bool = False

    @property
    def from_file(self) -> bool:
        """Whether the lengths stand in the requests file, or in the result file itself."""
        return not self.parts

    @classmethod
    def mean(cls, tokens: float) -> MeasuredLengths:
        """Lengths of which only the mean is known."""
        return cls((Fixed(tokens=max(1, round(tokens))),), (1.0,), only_mean=True)


@dataclass(frozen=True)
class MeasuredRun:
    """One row. None = unknown. Times in s, latencies in `measured` in ms, token counts of a whole replica.

    `file` is where the run was read from, and `line` the line on which it stands. `rows` are its requests,
    where that file lists them itself.
    """

    run_id: str
    line: int = 0
    file: Path = Path()
    rows: RequestRows | None = None
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
    prompt: MeasuredLengths | None = None
    output: MeasuredLengths | None = None
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
SETUP_COLUMNS = frozenset(MeasuredRun.__dataclass_fields__) - {"line", "file", "rows", "unscored", "measured"}
_COLUMNS = SETUP_COLUMNS | set(MEASURES)


@dataclass(frozen=True)
class RunTable:
    """The rows of a run table, and the columns that it has but nothing here reads."""

    runs: tuple[MeasuredRun, ...]
    unread_columns: tuple[str, ...]


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
                runs.append(MeasuredRun(line=line, file=path, **values))  # type: ignore[arg-type]
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


#: Weights written with a few digits still count as summing to one.
_WEIGHT_TOLERANCE = 1e-3


def parse_lengths(text: str) -> MeasuredLengths:
    """What a cell says of token lengths; ValueError says what is wrong with it.

    `fixed:N`, `uniform:LO:HI` with both ends included, `mean:M`, `quantiles:NAME` of a shipped grid, `file`,
    or `mix:W*SPEC+W*SPEC`. That a grid of this name is shipped is not checked here.
    """
    if text == "file":
        return MeasuredLengths()
    kind, _, rest = text.partition(":")
    if kind != "mix":
        return _parse_simple(text)
    weights: list[float] = []
    parts: list[Marginal] = []
    for term in rest.split("+"):
        weight, star, spec = term.partition("*")
        if not star:
            raise ValueError(f"{text!r}: each part of a mix is WEIGHT*SPEC, this one is {term!r}")
        weights.append(_number(weight, text))
        parts += _parse_simple(spec).parts
    if min(weights) < 0 or abs(sum(weights) - 1.0) > _WEIGHT_TOLERANCE:
        raise ValueError(f"{text!r}: the weights of a mix sum to 1, these to {sum(weights):g}")
    return MeasuredLengths(tuple(parts), tuple(weights))


def _parse_simple(text: str) -> MeasuredLengths:
    kind, _, rest = text.partition(":")
    match kind, rest.split(":"):
        case "fixed", [tokens] if tokens:
            return MeasuredLengths((Fixed(tokens=_whole(tokens, text)),), (1.0,))
        case "mean", [tokens] if tokens:
            mean = _number(tokens, text)
            if mean <= 0:
                raise ValueError(f"{text!r}: a mean length is above 0")
            return MeasuredLengths.mean(mean)
        case "uniform", [low, high]:
            lowest, highest = _whole(low, text), _whole(high, text)
            if highest < lowest:
                raise ValueError(f"{text!r}: the lower end is above the upper one")
            return MeasuredLengths((Uniform(tokens=(lowest, highest)),), (1.0,))
        case "quantiles", [name] if name:
            # unchecked: an unknown grid is no reason to refuse the whole table
            return MeasuredLengths((Quantiles.model_construct(grid=name),), (1.0,))
    raise ValueError(
        f"{text!r} is not a length: fixed:N, uniform:LO:HI, mean:M, mix:W*SPEC+W*SPEC (no nesting),"
        " quantiles:NAME or file"
    )


def _number(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{spec!r}: {text!r} is not a number")
    return number


def _whole(text: str, spec: str) -> int:
    number = _number(text, spec)
    if number != int(number) or number < 1:
        raise ValueError(f"{spec!r}: {text!r} is not a whole number of tokens above 0")
    return int(number)


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
