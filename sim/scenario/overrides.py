"""Values that options give: `--set a.b=c` changes a scenario before it is validated, `--grid a.b=1..8` lists.

A grid is `a..b` (doublings), `a..b:step` (steps), `a,b,c` (a list) or a plain value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from sim.errors import Fault, input_error
from sim.scenario.yaml_text import Data, Path, Places, read_yaml

_MAX_DEPTH = 100
MAX_VALUES = 100_000
MAX_MAGNITUDE = 10**18
_FORMS = "a..b, a..b:step or a,b,c"
_RANGE = re.compile(r"^\s*(?P<low>[^.,:\s][^,:\s]*?)\s*\.\.\s*(?P<high>[^:\s]+)\s*(?::\s*(?P<step>\S+))?\s*$")


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


def parse_axis(text: str, option: str = "--grid") -> tuple[str, list[Data]]:
    """The path and the values of one axis of a sweep, such as `engine.max_num_seqs=32..512`."""
    path, sign, values = text.partition("=")
    if not sign or not path.strip():
        raise input_error(
            "must read path=values, such as engine.max_num_seqs=32..512", where=f"{option} {text}"
        )
    return path.strip(), parse_grid(values, where=f"{option} {text}")


def parse_grid(text: str, *, where: str | None = None) -> list[Data]:
    """The values that a grid stands for, in order; whole numbers stay whole.

    `1..20` gives 1, 2, 4, 8, 16: doublings from the low end that do not pass the high end. `1..20:5` gives 1,
    6, 11, 16. `fp8,auto` and `[1, 2]` list values. Raises `InputError` where `where` is the place to name.
    """
    match = _RANGE.match(text)
    if match is None and ".." not in text:
        return _listed(text, where)
    if match is None:
        raise input_error(f"'{text.strip()}' is no grid; write {_FORMS}", where=where)
    low, high = _number(match["low"], where), _number(match["high"], where)
    if high < low:
        raise input_error(f"{text.strip()} ends below its start", where=where)
    if match["step"] is not None:
        step = _number(match["step"], where)
        if step <= 0:
            raise input_error(f"the step of {text.strip()} must be above 0", where=where)
        count = int((high - low) / step) + 1
        values = [low + step * index for index in range(min(count, MAX_VALUES + 1))]
    else:
        if low <= 0:
            raise input_error(f"doublings must start above 0 (got {text.strip()})", where=where)
        count = int(math.log2(float(high / low))) + 2
        values = [value for index in range(count) if (value := low * 2**index) <= high]
    if len(values) > MAX_VALUES:
        raise input_error(f"{text.strip()} has more than {MAX_VALUES:,} values", where=where)
    return [int(value) if value == value.to_integral_value() else float(value) for value in values]


def _listed(text: str, where: str | None) -> list[Data]:
    bracketed = text if text.strip().startswith("[") else f"[{text}]"
    data, _, faults = read_yaml(bracketed, "values")
    if faults or not isinstance(data, tuple) or not data:
        raise input_error(f"'{text.strip()}' is no grid; write {_FORMS}", where=where)
    return list(data)


def _number(text: str, where: str | None) -> Decimal:
    """Decimal, so that 0.1..0.5:0.1 has the values that it seems to have."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number) > MAX_MAGNITUDE:
        raise input_error(f"'{text}' is not a number up to 1e18", where=where)
    return number
