"""What is compared: the name of a policy, `field=value,…`, or another scenario, each made into a scenario."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sim.errors import Fault, InputError, did_you_mean
from sim.questions.sweep.axes import full_path
from sim.questions.sweep.cells import words
from sim.scenario import Scenario, load_scenario
from sim.scenario.cluster import ClusterSection
from sim.scenario.engine import EngineSection
from sim.scenario.loader import scenario_from_data, scenario_names
from sim.scenario.section import Section
from sim.scenario.yaml_text import Data, parse_axis, parse_path, read_yaml, with_value

_KINDS: dict[str, tuple[type[Section], str]] = {
    "engine.victim_policy": (EngineSection, "victim_policy"),
    "engine.waiting_order": (EngineSection, "waiting_order"),
    "engine.preemption_mode": (EngineSection, "preemption_mode"),
    "cluster.router": (ClusterSection, "router"),
}
"""Fields that hold a policy by its kind, with the section and the name of each."""
_SCHEDULERS = {"mirror": "mirror", "vllm": "vllm", "installed": "vllm"}
"""The values of `engine.scheduler` by their names as variants."""
_PART = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")
"""A comma that begins the next `field=value`; others belong to a value."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the things compared: what it is called, and its scenario, but for the seed."""

    label: str
    scenario: Scenario


def policy_names() -> dict[str, str]:
    """The field of every policy that can be named alone; `fcfs` and `priority` are scheduling policies, and
    whose scheduler decides is said by `mirror`, `vllm` or `installed`.
    """
    found = {
        kind: path
        for path, (section, name) in _KINDS.items()
        for kind in _kinds_of(section.model_fields[name].annotation)
    }
    return {
        **found,
        "fcfs": "engine.scheduling_policy",
        "priority": "engine.scheduling_policy",
        **dict.fromkeys(_SCHEDULERS, "engine.scheduler"),
    }


def _kinds_of(annotation: Any) -> Iterator[str]:
    """The values that the field `kind` can have in a section, or in any section of a union."""
    fields = getattr(annotation, "model_fields", None)
    if fields is None:
        for part in get_args(annotation):
            yield from _kinds_of(part)
    else:
        kinds = get_args(fields["kind"].annotation)
        yield from (kind for kind in kinds if kind != "plugin")


def make_variants(
    base: Scenario, given: Sequence[str | Scenario], vary: Sequence[str], overrides: Sequence[str]
) -> list[Variant]:
    """The variants, the first of which is the reference that the others are compared with.

    That is the scenario itself, unless two or more variants of it are given. Each of `vary` (`path=values`)
    adds one variant a value. Raises `InputError` with all mistakes.
    """
    faults: list[Fault] = []
    variants: list[Variant] = []
    others = 0
    for text in given:
        try:
            if isinstance(text, Scenario) or _is_scenario(text):
                others += 1
                scenario = text if isinstance(text, Scenario) else load_scenario(text, overrides)
                variants.append(Variant(scenario.name, scenario))
            else:
                variants.append(_varied(base, text, text))
        except InputError as error:
            faults += error.faults
    for text in vary:
        try:
            path, values = parse_axis(text, "--vary")
            variants += [_with(base, {path: value}, f"--vary {text}") for value in values]
        except InputError as error:
            faults += error.faults
    if len(variants) + bool(faults) - others < 2 or others:
        variants.insert(0, Variant(base.name, base))
    if len(variants) < 2 and not faults:
        message = "name what to compare it with: a policy, field=value, another scenario, or --vary"
        faults.append(Fault(base.name, None, message))
    if faults:
        raise InputError(faults)
    return _told_apart(variants)


def _told_apart(variants: Sequence[Variant]) -> list[Variant]:
    """Labels that occur more than once are numbered."""
    labels = [variant.label for variant in variants]
    found = []
    for index, variant in enumerate(variants):
        again = labels[:index].count(variant.label)
        found.append(Variant(f"{variant.label} ({again + 1})", variant.scenario) if again else variant)
    return found


def _is_scenario(text: str) -> bool:
    return "=" not in text and (text in scenario_names() or Path(text).suffix in (".yaml", ".yml"))


def _varied(base: Scenario, text: str, where: str) -> Variant:
    """The scenario under a policy's name, or with fields set."""
    names = policy_names()
    if text in ("base", "default", base.name):
        return Variant(text, base)
    if "=" not in text:
        if text not in names:
            near = did_you_mean(text, [*names, *scenario_names()])
            message = f"is no policy, field=value or scenario{near}; policies are {', '.join(sorted(names))}"
            raise InputError([Fault(text, None, message)])
        return Variant(text, _with(base, _policy(base, names[text], text), where).scenario)
    settings: dict[str, Data] = {}
    faults = []
    for part in _PART.split(text):
        name, _, value_text = part.partition("=")
        key = name.strip()
        value, _, found = read_yaml(value_text, "value")
        faults += [Fault(where, key, fault.message) for fault in found]
        if key in settings:
            faults.append(Fault(where, key, "is given twice"))
        settings[key] = value
    if faults:
        raise InputError(faults)
    return _with(base, settings, where)


def _policy(base: Scenario, path: str, name: str) -> dict[str, Data]:
    """What a policy's name sets. Orders that mind no priority take priority's choice of victims away too."""
    settings: dict[str, Data] = {path: _SCHEDULERS.get(name, name)}
    if path == "engine.scheduler" and name == "mirror":
        settings["engine.scheduler_cls"] = None
    if path == "engine.waiting_order" and name != "aged_priority":
        settings["engine.scheduling_policy"] = "fcfs"
    elif path == "engine.scheduling_policy":
        settings |= {"engine.waiting_order": None, "engine.victim_policy": None}
    return settings


def _with(base: Scenario, settings: Mapping[str, Data], where: str) -> Variant:
    """The scenario with these fields, and a label of their names and values."""
    data: Data = base.as_data()
    faults, label = [], []
    for name, value in settings.items():
        path = full_path(base, name)
        label.append(
            f"{path.rpartition('.')[2] if '.kind' not in path else path.split('.')[-2]}={_words(value)}"
        )
        # A policy's name alone stands for its kind, and takes the place of the policy there was.
        section: Data = {"kind": value} if path in _KINDS and isinstance(value, str) else value
        try:
            data = with_value(data, parse_path(path), section)
        except LookupError as error:
            faults.append(Fault(where, path, str(error.args[0])))
    if faults:
        raise InputError(faults)
    try:
        scenario = scenario_from_data(data)
    except InputError as error:
        raise InputError([Fault(f.where or where, f.path, f.message) for f in error.faults]) from None
    return Variant(", ".join(label), scenario)


def _words(value: Data) -> str:
    return "null" if value is None else words(value)
