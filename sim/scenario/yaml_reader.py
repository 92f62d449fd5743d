"""Reads YAML for `yaml_source`: one pass over the nodes that ruamel makes of a text."""

from __future__ import annotations

import re

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sim.errors import Fault
from sim.scenario.places import Path, Places
from sim.scenario.yaml_source import Data

_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_MAX_VALUES = 100_000
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}


class _Reader:
    """One pass over the node tree of a document."""

    def __init__(self, file: str) -> None:
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
        if self.num_values > _MAX_VALUES:  # aliases of aliases grow without end in few lines
            raise YAMLError(f"more than {_MAX_VALUES:,} values")
        if id(node) in self.open_nodes:
            self.fault(node, path, "an alias that contains itself")
            return None
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            if isinstance(node, SequenceNode):
                return tuple(self.read(item, (*path, index)) for index, item in enumerate(node.value))
            return self.scalar(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def mapping(self, node: MappingNode, path: Path) -> Data:
        data: dict[str, Data] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if not isinstance(key_node, ScalarNode):
                self.fault(key_node, path, "a key must be a single word")
            elif key in data:
                self.fault(key_node, (*path, key), "given twice")
            else:
                self.places.by_path[(*path, key)] = self.place(key_node)
                data[key] = self.read(value_node, (*path, key))
        return data

    def scalar(self, node: Node, path: Path) -> Data:
        if str(node.tag) not in _PLAIN_TAGS:
            return str(
                node.value
            )  # dates and custom tags: no field takes them, so validation refuses the string
        try:
            value: Data = self.yaml.constructor.construct_object(node)
        except (
            ValueError,
            LookupError,
        ):  # the tag says what the text is not, or a number has too many digits
            kind = str(node.tag).rpartition(":")[2]
            shown = node.value if len(node.value) <= 40 else f"{node.value[:37]}..."
            self.fault(node, path, f"'{shown}' cannot be read as {kind}")
            return None
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.fault(node, path, "half of a surrogate pair is no character")
            return None
        if (
            isinstance(value, float)
            and _EXPONENT.match(node.value)
            and value.is_integer()
            and abs(value) < 1 << 53
        ):
            return int(value)  # 1e3 is a whole number, and may stand where an integer must; 1000.0 may not
        return value


def read(text: str, file: str) -> tuple[Data, Places, list[Fault]]:
    """What `yaml_source.read_yaml` returns."""
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
    except YAMLError as error:
        return None, reader.places, [Fault(file, None, f"not YAML: {' '.join(str(error).split())}")]
    return data, reader.places, reader.faults
