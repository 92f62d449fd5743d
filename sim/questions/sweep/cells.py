"""From axes to scenarios: every combination checked and every mistake named before anything is simulated.

A trace that cannot be opened is a mistake too: else each of many runs would find out alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import Fault, InputError, input_error
from sim.questions.sweep.axes import Axis
from sim.scenario import Scenario
from sim.scenario.loader import scenario_from_data
from sim.scenario.workload import TraceWorkload, plain_parts
from sim.scenario.yaml_text import Data, parse_path, with_value
from sim.workload.trace_reader import open_trace

if TYPE_CHECKING:
    import pandas as pd

MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: the value of each path, and its scenario, or why there is none."""

    setting: dict[str, Data]
    scenario: Scenario | None
    fault: str | None = None


def make_cells(base: Scenario, axes: Sequence[Axis], num_seeds: int = 1) -> list[Cell]:
    """Every combination of the axes' rows, the last axis varying fastest; without axes the base alone.

    A value that makes every combination with it invalid is a mistake, and so is a combination that is alone:
    raises `InputError` with all of them. Where a value is only wrong together with some other, those cells
    have a fault in place of a scenario. A trace that cannot be opened makes a combination invalid.
    """
    num_cells = prod(len(axis.rows) for axis in axes)
    if num_cells * num_seeds > MOST_RUNS:
        message = f"{num_cells:,} points with {num_seeds} seeds each are more than {MOST_RUNS:,} runs"
        raise input_error(message, where="--grid")
    data = base.as_data()
    cells: list[Cell] = []
    faults: list[list[Fault]] = []
    indices = list(product(*(range(len(axis.rows)) for axis in axes)))
    for index in indices:
        chosen = [
            (path, value, where)
            for axis, row in zip(axes, index, strict=True)
            for path, value, where in zip(axis.paths, axis.rows[row], axis.where, strict=True)
        ]
        values = {path: value for path, value, _ in chosen}
        try:
            scenario = scenario_from_data(_varied(data, chosen))
        except InputError as error:
            found = [_placed(fault, chosen) for fault in error.faults]
            cells.append(Cell(values, None, "; ".join(map(str, found))))
            faults.append(found)
        else:
            unread = [_placed(fault, chosen) for fault in trace_faults(scenario, base)]
            reason = "; ".join(map(str, unread)) or None
            cells.append(Cell(values, None if unread else scenario, reason))
            faults.append(unread)
    mistakes = list(_mistakes(axes, indices, faults))
    if mistakes:
        raise InputError(mistakes)
    return cells


def trace_faults(scenario: Scenario, base: Scenario) -> Iterator[Fault]:
    """Why traces of a scenario cannot be opened on this machine, with the place that names the file.

    A scenario made in code from `base` knows no places: where it kept the trace, they are those of `base`.
    """
    original = plain_parts(base.workload)
    for field, part in plain_parts(scenario.workload).items():
        if not isinstance(part, TraceWorkload):
            continue
        named = scenario.fault(f"{field}.path", "")
        if named.where is None and getattr(original.get(field), "path", None) == part.path:
            named = base.fault(f"{field}.path", "")
        try:
            with open_trace(Path(part.path), named) as lines:
                lines.close()
        except InputError as error:
            yield from error.faults


def _varied(data: dict[str, Data], chosen: Sequence[tuple[str, Data, str]]) -> dict[str, Data]:
    varied: Data = data
    faults: list[Fault] = []
    for path, value, where in chosen:
        try:
            varied = with_value(varied, parse_path(path), value)
        except LookupError as error:
            faults.append(Fault(where, path, str(error.args[0])))
    if faults:
        raise InputError(faults)
    assert isinstance(varied, dict)
    return varied


def _placed(fault: Fault, chosen: Sequence[tuple[str, Data, str]]) -> Fault:
    """The fault with the option whose path it is about, where it has no place of its own."""
    if fault.where is not None or fault.path is None:
        return fault
    near = (where for path, _, where in chosen if f"{fault.path}.".startswith(f"{path}."))
    outer = (where for path, _, where in chosen if path.startswith(f"{fault.path}."))
    section = fault.path.partition(".")[0]
    beside = (where for path, _, where in chosen if path.partition(".")[0] == section)
    return Fault(next(near, next(outer, next(beside, None))), fault.path, fault.message)


def _mistakes(
    axes: Sequence[Axis], indices: Sequence[tuple[int, ...]], faults: Sequence[list[Fault]]
) -> Iterator[Fault]:
    """Each fault once, of values that are wrong in whatever company."""
    if not axes:
        yield from faults[0]
        return
    told = set[Fault]()
    for place, axis in enumerate(axes):
        for row in range(len(axis.rows)):
            cells = [at for at, index in enumerate(indices) if index[place] == row]
            if not all(faults[at] for at in cells):
                continue
            for fault in (fault for at in cells for fault in faults[at]):
                if fault not in told:
                    told.add(fault)
                    yield fault


def words(value: object) -> str:
    """A value as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        kind = value.get("kind")
        rest = ", ".join(f"{key}: {words(item)}" for key, item in value.items() if key != "kind")
        return f"{kind}({rest})" if rest and kind else str(kind or rest)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(words, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(setting: Mapping[str, object]) -> str:
    """A setting in words, such as `max_num_seqs 64, watermark 0.05`."""
    return ", ".join(f"{path.rpartition('.')[2]} {words(value)}" for path, value in setting.items())


def labels(table: pd.DataFrame, paths: Sequence[str]) -> list[str]:
    """The values of these paths in each row, in words."""
    return [label({path: row[path] for path in paths}) for _, row in table.iterrows()]
