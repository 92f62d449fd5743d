"""A scenario with every default written out, as YAML that loads again to the same run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.scenario.checks import resolved_engine
from sim.version import dryserve_version

if TYPE_CHECKING:
    from sim.scenario.scenario import Scenario

_PLAIN_TEXT = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]*$")
_WORDS_OF_YAML = {"true", "false", "null"}


def dump_resolved(scenario: Scenario) -> str:
    """YAML of every field, the engine's defaults filled in; equal scenarios and versions give equal text."""
    resolved = scenario.model_copy(update={"engine": resolved_engine(scenario)})
    engine = resolved.engine.version
    head = f"# dryserve {dryserve_version()}; mirrors vLLM {engine}; every default written out\n"
    return head + "\n".join(_lines(resolved.model_dump(mode="json"), "")) + "\n"


def _lines(section: dict[str, object], indent: str) -> Iterator[str]:
    for key, value in sorted(
        section.items(), key=lambda item: item[0] != "kind"
    ):  # kind first, the rest as it is
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN_TEXT.match(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)
