"""YAML text to plain data and back, and what `--set` and `--grid` put into such data.

Reading notes the place of every value, and every repeated key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from sim.errors import Fault, input_error

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    Node = MappingNode | ScalarNode | SequenceNode


Path = tuple[str | int, ...]
Data = dict[str, "Data"] | tuple["Data", ...] | str | int | float | bool | None

_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_MAX_VALUES = 100_000
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
_PLAIN_TEXT = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]*$")
_WORDS_OF_YAML = {"true", "false", "null"}


@dataclass(slots=True, eq=False)
class Places:
    """Maps the path of a value, such as `("engine", "block_size")`, to the place it was written."""

    by_path: dict[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str | None:
        """The place of `path`, or of the nearest section around it; None for a scenario made in code."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.by_path:
                return self.by_path[path[:length]]
        return None

    def replace(self, path: Path, place: str) -> None:
        """Say that `path` and all below it now come from `place`."""
        self.by_path = {known: at for known, at in self.by_path.items() if known[: len(path)] != path}
        self.by_path[path] = place

    def __eq__(self, other: object) -> bool:
        """Always equal to other places: two scenarios are the same wherever their values were written."""
        return isinstance(other, Places)

    __hash__ = None  # type: ignore[assignment]


def read_yaml(text: str, file: str) -> tuple[Data, Places, list[Fault]]:
    """The data of a YAML 1.2 document, the place of each value, and faults of form.

    Sequences become tuples. `file` is the name that the places begin with.
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # late: a scenario made in code needs no parser

    reader = _Reader(file)
    try:
        node = reader.yaml.compose(text)
        data = None if node is None else reader.read(node, ())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        problem = " ".join(filter(None, (error.context, error.problem)))
        return None, reader.places, [Fault(where, None, f"not YAML: {problem}")]
    except RecursionError:
        return None, reader.places, [Fault(file, None, "not YAML: nested too deeply")]
    except (YAMLError, _TooManyValuesError) as error:
        return None, reader.places, [Fault(file, None, f"not YAML: {' '.join(str(error).split())}")]
    return data, reader.places, reader.faults


def yaml_text(data: Mapping[str, object]) -> str:
    """A mapping as YAML, one field a line; equal data give equal text, which `read_yaml` reads back."""
    return "\n".join(_lines(data, "")) + "\n"


def _lines(section: Mapping[str, object], indent: str) -> Iterator[str]:
    kind_first = sorted(section.items(), key=lambda item: item[0] != "kind")
    for key, value in kind_first:
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)


class _TooManyValuesError(Exception):
    """Aliases of aliases grow without end in few lines."""


class _Reader:
    """One pass over the node tree of a document."""

    def __init__(self, file: str) -> None:
        from ruamel.yaml import YAML  # late, as above

        self.file = file
        self.yaml = YAML(typ="safe", pure=True)
        self.places = Places()
        self.faults: list[Fault] = []
        self.open_nodes: set[int] = set()
        self.num_values = 0

    def place(self, node: Node) -> str:
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def fault(self, node: Node, path: Path, message: str) -> None:
        self.faults.append(Fault(self.place(node), ".".join(map(str, path)) or None, message))

    def read(self, node: Node, path: Path) -> Data:
        self.places.by_path.setdefault(path, self.place(node))
        self.num_values += 1
        if self.num_values > _MAX_VALUES:
            raise _TooManyValuesError(f"more than {_MAX_VALUES:,} values")
        if id(node) in self.open_nodes:
            self.fault(node, path, "an alias that contains itself")
            return None
        self.open_nodes.add(id(node))
        try:
            if node.id == "mapping":
                return self.mapping(node, path)
            if node.id == "sequence":
                return tuple(self.read(item, (*path, index)) for index, item in enumerate(node.value))
            return self.scalar(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def mapping(self, node: Node, path: Path) -> Data:
        data: dict[str, Data] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key_node.id != "scalar":
                self.fault(key_node, path, "a key must be a single word")
            elif key in data:
                self.fault(key_node, (*path, key), "given twice")
            else:
                self.places.by_path[(*path, key)] = self.place(key_node)
                data[key] = self.read(value_node, (*path, key))
        return data

    def scalar(self, node: Node, path: Path) -> Data:
        if str(node.tag) not in _PLAIN_TAGS:
            return str(node.value)  # of a date or a custom tag; no field takes it, so validation refuses it
        try:
            value: Data = self.yaml.constructor.construct_object(node)
        except (ValueError, LookupError):  # the text is not what its tag says, or has too many digits
            kind = str(node.tag).rpartition(":")[2]
            shown = node.value if len(node.value) <= 40 else f"{node.value[:37]}..."
            self.fault(node, path, f"'{shown}' cannot be read as {kind}")
            return None
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.fault(node, path, "half of a surrogate pair is no character")
            return None
        if isinstance(value, float) and _EXPONENT.match(node.value):
            # 1e3 is a whole number, and may stand where an integer must; 1000.0 may not
            return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
        return value


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
