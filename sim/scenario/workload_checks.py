"""What the parts of a workload ask of one another, of their classes and of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.errors import Fault, did_you_mean
from sim.scenario.lengths import MixtureLengths
from sim.scenario.workload import MixWorkload, PlainWorkload, SyntheticSection, TraceWorkload

if TYPE_CHECKING:
    from sim.scenario.scenario import Scenario

DEFAULT_CLASS = "default"


def plain_parts(scenario: Scenario) -> dict[str, PlainWorkload]:
    """The plain workloads of a scenario by their path."""
    section = scenario.workload
    if isinstance(section, MixWorkload):
        return {f"workload.workloads.{name}": part for name, part in section.workloads.items()}
    return {"workload": section}


def workload_faults(scenario: Scenario) -> Iterator[Fault]:
    """Every fault that takes more than one field of the workload to see."""
    for path, part in plain_parts(scenario).items():
        if part.lora is not None and scenario.engine.lora is None:
            yield scenario.fault(f"{path}.lora", "LoRA is off; give engine.lora, such as {max_loras: 4}")
        if part.grammar is not None and scenario.engine.grammar is None:
            yield scenario.fault(
                f"{path}.grammar",
                "no grammar is compiled; give engine.grammar, such as {compile_s: 0.1}",
            )
        if isinstance(part, TraceWorkload) and part.follow_sessions and part.prefixes:
            yield scenario.fault(f"{path}.prefixes", "not together with follow_sessions")
        if isinstance(scenario.workload, MixWorkload):
            for name in ("ignore_eos", "temperature", "length_estimate", "classes"):
                value = getattr(part, name)
                if value is not None and value is not False:
                    yield scenario.fault(f"{path}.{name}", f"holds for all parts alike; give workload.{name}")
    yield from _class_faults(scenario)


def class_names(section: PlainWorkload) -> tuple[str, ...] | None:
    """The classes of a workload's requests; None where only a trace can tell."""
    if isinstance(section, TraceWorkload):
        return None
    assert isinstance(section, SyntheticSection)
    if isinstance(section.lengths, MixtureLengths):
        return tuple(component.name for component in section.lengths.components)
    return (DEFAULT_CLASS,)


def part_class(part: str, name: str) -> str:
    """The class of a request of a mixed workload's part: the part's name, and its own class if it has one."""
    return part if name == DEFAULT_CLASS else f"{part}/{name}"


def _class_faults(scenario: Scenario) -> Iterator[Fault]:
    section = scenario.workload
    known: list[str] = []
    if isinstance(section, MixWorkload):
        for part, inner in section.workloads.items():
            names = class_names(inner)
            if names is None:
                return
            known += [part_class(part, name) for name in names]
    else:
        names = class_names(section)
        if names is None:
            return
        known += names
    for name in section.classes or ():
        if name not in known:
            yield scenario.fault(f"workload.classes.{name}", unknown_class(name, known))


def unknown_class(name: str, known: list[str] | tuple[str, ...]) -> str:
    """What to say of a class that no request has."""
    return f"no request is of this class; there are {', '.join(known)}{did_you_mean(name, known)}"
