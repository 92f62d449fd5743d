"""YAML text to plain data, remembering the line and column of every value, and finding every repeated key."""

from __future__ import annotations

from sim.errors import Fault
from sim.scenario.places import Places

Data = dict[str, "Data"] | tuple["Data", ...] | str | int | float | bool | None


def read_yaml(text: str, file: str) -> tuple[Data, Places, list[Fault]]:
    """The data of a YAML 1.2 document (sequences as tuples), the place of each value, and faults of form."""
    from sim.scenario.yaml_reader import read  # late: a scenario made in code needs no parser

    return read(text, file)
