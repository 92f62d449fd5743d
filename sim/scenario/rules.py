"""The rules and switches of a release as a scenario sees them: what each means, and since when it is there.

Everything about rules is read from `scheduler.release`: names and dates from its records, meanings from the
lines under each name. So the table of rules cannot say anything else than the code. Switches are vLLM's own
settings, and a release that lacks one refuses it. Those that only ask for more room at admission work in
every release; where vLLM did not have them yet, the run says so.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

import scheduler
from scheduler.release import Defaults, Release, Rules, parse_version
from sim.errors import did_you_mean

_T = TypeVar("_T")

SINCE = {
    "max_num_scheduled_tokens": "0.17.0",
    "pause_events": "0.17.0",
    "window_retention_tokens": "0.23.0",
    "max_active": "0.33.0",
    "long_prefill_adaptive": "0.33.0",
    "prefill_interval": "0.33.0",
}
"""The first release known to have each switch. Those of the last came earlier, but it is not known when."""

EVERYWHERE = {"reserve_full_prompt": "0.23.0", "watermark": "0.26.0"}
"""The same for the switches that any release takes here."""

DRAFTS_BY_BATCH_SINCE = "0.33.0"
"""The first release known to have `drafts_by_batch`."""


@dataclass(frozen=True, slots=True)
class RuleFact:
    """One rule: the version since which it holds, what it means, the modules that ask for it."""

    name: str
    since: str
    meaning: str
    modules: tuple[str, ...]


RULE_NAMES: tuple[str, ...] = tuple(
    each.name for kind in (Rules, Defaults) for each in fields(kind) if isinstance(each.default, bool)
)
"""Every rule that is on or off, in the order of a step."""


@cache
def rule_facts() -> dict[str, RuleFact]:
    """What there is to say of every rule, by name."""
    facts = {
        each.name: RuleFact(
            each.name, each.metadata["since"], _meanings(kind)[each.name], _modules(kind, each.name)
        )
        for kind in (Rules, Defaults)
        for each in fields(kind)
    }
    return {name: facts[name] for name in RULE_NAMES}


def rules_markdown() -> str:
    """The table of rules, as it stands in ARCHITECTURE.md and on the reference page."""
    lines = ["| rule | since | what it does | where it bites |", "|---|---|---|---|"]
    for fact in rule_facts().values():
        places = ", ".join(f"`{name}`" for name in fact.modules)
        lines.append(f"| `{fact.name}` | {fact.since} | {fact.meaning} | {places} |")
    return "\n".join(lines) + "\n"


def rule_value(of: Release, name: str) -> bool:
    """Whether a rule holds in a release."""
    return bool(getattr(of.rules if hasattr(of.rules, name) else of.defaults, name))


def noting(record: _T, asked: set[str]) -> _T:
    """An equal record of rules or defaults that notes in `asked` which of its fields are read."""

    def note(self: object, name: str) -> object:
        asked.add(name)
        return object.__getattribute__(self, name)

    kind = type(record)
    values = {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]
    watched: type[_T] = type("Watched", (kind,), {"__slots__": (), "__getattribute__": note})
    return watched(**values)


def since(switch: str) -> str:
    """For the description of a switch."""
    return f"; since vLLM {(SINCE | EVERYWHERE)[switch].removesuffix('.0')}"


def knows(version: str, switch: str) -> bool:
    """Whether a release has a switch."""
    return parse_version(version) >= parse_version((SINCE | EVERYWHERE)[switch])


def _meanings(kind: type) -> dict[str, str]:
    """The documentation under each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found, name = {}, ""
    for line in body.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and name:
            found[name] = " ".join(str(line.value.value).split())
    return found


@cache
def _sources() -> dict[str, str]:
    """The text of every module that could ask for a rule, by its path."""
    root = Path(scheduler.__file__).parents[1]
    files = [
        *root.glob("scheduler/**/*.py"),
        *root.glob("sim/cluster/*.py"),
        *root.glob("sim/evidence/conform/*.py"),
    ]
    return {
        str(file.relative_to(root).as_posix()): file.read_text(encoding="utf-8")
        for file in sorted(files)
        if file.name != "release.py"
    }


def _modules(kind: type, name: str) -> tuple[str, ...]:
    """Where a rule is asked for; a default becomes a setting of the same name, which is asked for instead."""
    holders = "rules" if kind is Rules else "config|defaults"
    asked = re.compile(rf"\b(?:{holders})\.{name}\b")
    return tuple(file for file, text in _sources().items() if asked.search(text))


def _check_name(name: str) -> str:
    if name not in RULE_NAMES:
        near = did_you_mean(name, RULE_NAMES)
        raise ValueError(f"unknown rule{near}" if near else f"unknown rule; known: {', '.join(RULE_NAMES)}")
    return name


def _check_version(version: str) -> str:
    parse_version(version)
    return version


def _in_order(given: Mapping[str, bool]) -> dict[str, bool]:
    """Equal settings must resolve to equal text, in whatever order they were given."""
    return {name: given[name] for name in RULE_NAMES if name in given}


EngineVersion = Annotated[str, AfterValidator(_check_version)]
RuleSettings = Annotated[
    dict[Annotated[str, AfterValidator(_check_name)], bool],
    AfterValidator(_in_order),
    Field(json_schema_extra={"propertyNames": {"enum": list(RULE_NAMES)}}),
]
