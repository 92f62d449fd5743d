"""Grids of values for sweeps: `a..b` doublings, `a..b:step` steps, `a,b,c` lists, and plain values."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from sim.errors import input_error
from sim.scenario.yaml_source import Data, read_yaml

MAX_VALUES = 100_000
MAX_MAGNITUDE = 10**18
_FORMS = "a..b, a..b:step or a,b,c"
_RANGE = re.compile(r"^\s*(?P<low>[^.,:\s][^,:\s]*?)\s*\.\.\s*(?P<high>[^:\s]+)\s*(?::\s*(?P<step>\S+))?\s*$")


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
