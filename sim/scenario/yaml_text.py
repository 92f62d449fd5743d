"""YAML text to plain data and back. Reading notes the place of every value, and every repeated key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.errors import Fault

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
