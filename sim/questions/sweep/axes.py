"""What varies in a sweep: axes, each one field with its values, or several fields that move together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sim.errors import Fault, InputError, input_error
from sim.scenario.cluster import ClusterSection
from sim.scenario.engine import EngineSection
from sim.scenario.scenario import Scenario
from sim.scenario.yaml_text import Data, parse_axis, parse_grid

RATE, CONCURRENCY = "workload.rate_per_s", "workload.max_concurrency"
MOST_RATES = 15
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)

Values = str | Sequence[Data]


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields of the scenario by their paths, and the values that they take together; `where` gave them."""

    paths: tuple[str, ...]
    rows: tuple[tuple[Data, ...], ...]
    where: tuple[str, ...]


def make_axes(
    scenario: Scenario,
    grids: Sequence[str] | Mapping[str, Values] = (),
    zipped: Sequence[str] | Mapping[str, Values] = (),
    rates: str | Sequence[float] | None = None,
) -> tuple[list[Axis], list[Fault]]:
    """The axes of a sweep in the order given, rates first, and all that is wrong with them.

    Grids are texts such as `engine.max_num_seqs=32..512`, or a mapping from path to values. All of `zipped`
    together are one axis. A name without a section is looked for in `engine`, `cluster` and `workload`.
    """
    faults: list[Fault] = []
    axes: list[Axis] = []
    if rates is not None:
        with _noted(faults):
            values = tuple((rate,) for rate in _rates(rates))
            axes.append(Axis((RATE,), values, (f"--rate {rates}",)))
    axes += [Axis((path,), rows, (where,)) for path, rows, where in _read(scenario, grids, "--grid", faults)]
    together = list(_read(scenario, zipped, "--zip", faults))
    if together:
        lengths = {len(rows) for _, rows, _ in together}
        if len(lengths) > 1:
            told = ", ".join(f"{path} has {len(rows)}" for path, rows, _ in together)
            faults.append(Fault("--zip", None, f"needs equally many values: {told}"))
        else:
            paths, columns, where = zip(*together, strict=True)
            rows = tuple(tuple(row[0] for row in values) for values in zip(*columns, strict=True))
            axes.append(Axis(paths, rows, where))
    faults += _path_faults(axes)
    faults += [fault for axis in axes for fault in _repeated(axis)]
    return axes, faults


class _noted:  # noqa: N801  # read as a phrase: with _noted(faults)
    """Adds the faults of an `InputError` raised inside to a list, and goes on."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not isinstance(error, InputError):
            return False
        self._faults += error.faults
        return True


def _read(
    scenario: Scenario, given: Sequence[str] | Mapping[str, Values], option: str, faults: list[Fault]
) -> Iterator[tuple[str, tuple[tuple[Data, ...], ...], str]]:
    """Path, rows of one value, and place of each axis that can be read."""
    items = given.items() if isinstance(given, Mapping) else [(None, text) for text in given]
    for name, text in items:
        with _noted(faults):
            if name is None:
                where = f"{option} {text}"
                path, values = parse_axis(str(text), option)
            else:
                where = f"{option} {name}"
                path = name.strip()
                values = parse_grid(text, where=where) if isinstance(text, str) else [*map(_plain, text)]
                if not values:
                    raise input_error("has no values", where=where)
            yield full_path(scenario, path), tuple((value,) for value in values), where


def _plain(value: Data) -> Data:
    """A value made in code, as a file would give it: lists as tuples, numbers of numpy as Python's."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    item = getattr(value, "item", None)
    return item() if callable(item) else value


def full_path(scenario: Scenario, path: str) -> str:
    """The path with its section: `max_num_seqs` is `engine.max_num_seqs`."""
    head = path.partition(".")[0]
    if head in Scenario.model_fields:
        return path
    sections = {
        "engine": EngineSection.model_fields,
        "cluster": ClusterSection.model_fields,
        "workload": type(scenario.workload).model_fields,
    }
    return next((f"{name}.{path}" for name, fields in sections.items() if head in fields), path)


def _rates(given: str | Sequence[float]) -> Sequence[Data]:
    """Rates of `1:20` (about ten even steps), `1:20:2` (steps of 2), or a grid."""
    if not isinstance(given, str):
        return [_plain(rate) for rate in given]
    where = f"--rate {given}"
    parts = given.split(":")
    if ".." in given or len(parts) not in (2, 3):
        return parse_grid(given, where=where)
    if len(parts) == 3:
        return parse_grid(f"{parts[0]}..{parts[1]}:{parts[2]}", where=where)
    (low, high) = (
        float(str(parse_grid(part, where=where)[0])) if _is_number(part) else math.nan for part in parts
    )
    if not 0 < low < high:
        raise input_error("must read low:high with 0 < low < high, such as 1:20", where=where)
    step = _nice_step(high - low)
    values = parse_grid(f"{parts[0]}..{parts[1]}:{step:g}", where=where)
    last = values[-1]
    assert isinstance(last, (int, float))
    if high - last < step / 2:
        values = values[:-1]
    return [*values, int(high) if high == int(high) else high]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _nice_step(span: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that makes at most `MOST_RATES` values of a span."""
    least = span / (MOST_RATES - 2)
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * nice for nice in _NICE if power * nice >= least)


def _path_faults(axes: Sequence[Axis]) -> Iterator[Fault]:
    """Fields given twice, one inside another, and those that have an option of their own."""
    given = [(path, where) for axis in axes for path, where in zip(axis.paths, axis.where, strict=True)]
    for index, (path, where) in enumerate(given):
        if path == "seed":
            yield Fault(where, path, "is set by --seeds or --replications")
        for other, _ in given[:index]:
            if path == other:
                yield Fault(where, path, "is given twice")
            elif path.startswith(f"{other}.") or other.startswith(f"{path}."):
                yield Fault(where, path, f"cannot vary together with {other}: one is inside the other")


def _repeated(axis: Axis) -> Iterator[Fault]:
    for index, row in enumerate(axis.rows):
        if row in axis.rows[:index]:
            said = ", ".join("null" if value is None else str(value) for value in row)
            yield Fault(axis.where[0], None, f"has {said} twice")
