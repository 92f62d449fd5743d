"""`--set a.b=c`: change values of a scenario before it is validated, and remember who did."""

from __future__ import annotations

from collections.abc import Sequence

from sim.errors import Fault
from sim.scenario.places import Path, Places
from sim.scenario.yaml_source import Data, read_yaml

_MAX_DEPTH = 100


def apply_overrides(data: Data, places: Places, overrides: Sequence[str]) -> tuple[Data, list[Fault]]:
    """`data` with each `path=value` applied in order; values are YAML (`12`, `null`, `{kind: random}`).

    A number in a path picks an item of a list. `null` puts a field back to its default. `places` is updated.
    """
    faults: list[Fault] = []
    for text in overrides:
        place = f"--set {text}"
        key, sign, value_text = text.partition("=")
        path = parse_path(key)
        if len(path) > _MAX_DEPTH:
            faults.append(Fault(place, None, f"the path has {len(path):,} steps; at most {_MAX_DEPTH}"))
            continue
        if not sign or "" in path:
            faults.append(Fault(place, None, "must read path=value, such as workload.rate_per_s=12"))
            continue
        value, _, value_faults = read_yaml(value_text, "value")
        if value_faults:
            faults += [Fault(place, key, fault.message) for fault in value_faults]
            continue
        try:
            data = with_value(data, path, value)
        except LookupError as error:
            faults.append(Fault(place, key, str(error.args[0])))
            continue
        places.replace(path, place)
    return data, faults


def parse_path(text: str) -> Path:
    """The steps of `a.b.0`; a number picks an item of a list."""
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in text.strip().split("."))


def with_value(data: Data, path: Path, value: Data) -> Data:
    """A copy of `data` in which `path` has `value`; sections on the way are made when missing.

    Raises LookupError where a path leads into a plain value or past the end of a list.
    """
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, tuple):
        if not isinstance(head, int) or head >= len(data):
            raise LookupError(f"'{head}' is no item of a list of {len(data)}")
        return (*data[:head], with_value(data[head], rest, value), *data[head + 1 :])
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise LookupError(f"'{head}' cannot be set inside the plain value {data!r}")
    return {**data, str(head): with_value(data.get(str(head)), rest, value)}
