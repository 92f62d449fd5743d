"""Switches of the engine that not every release has, and what happens where one comes too early.

They are vLLM's own settings, so a release that lacks one refuses it. Those that only ask for more room at
admission work in every release; where vLLM did not have them yet, the run says so.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from scheduler.release import parse_version
from sim.errors import Fault
from sim.scenario.rules import release_of
from sim.scenario.section import Section

if TYPE_CHECKING:
    from sim.scenario.engine import EngineSection
    from sim.scenario.scenario import Scenario

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
"""The same of the switches that any release takes here."""

PAUSE_LEVELS = {"unpaused": 0, "paused_new": 1, "paused_all": 2}


class PauseEvent(Section):
    """From a moment on every engine is paused, or goes on."""

    at_s: Annotated[float, Field(ge=0, le=1e9, description="simulated time")]
    state: Annotated[
        Literal["unpaused", "paused_new", "paused_all"],
        Field(
            description="unpaused: as usual; paused_new: nobody is admitted who holds no KV blocks; "
            "paused_all: nothing is scheduled"
        ),
    ]


def since(switch: str) -> str:
    """For the description of a switch."""
    return f"; since vLLM {(SINCE | EVERYWHERE)[switch].removesuffix('.0')}"


def knows(version: str, switch: str) -> bool:
    """Whether a release has a switch."""
    return parse_version(version) >= parse_version((SINCE | EVERYWHERE)[switch])


def switch_notes(engine: "EngineSection") -> list[str]:
    """Switches that are on though the release did not have them yet."""
    early = [
        f"{name} (since {first})"
        for name, first in EVERYWHERE.items()
        if getattr(engine, name) and not knows(engine.version, name)
    ]
    return [f"vLLM {engine.version} has no {', no '.join(early)}: this run adds it"] if early else []


def switch_faults(scenario: "Scenario") -> Iterator[Fault]:
    """Switches that the release lacks, and values that no engine takes."""
    engine = scenario.engine
    for name, first in SINCE.items():
        off = type(engine).model_fields[name].default
        if getattr(engine, name) != off and not knows(engine.version, name):
            yield scenario.fault(
                f"engine.{name}", f"known of vLLM since {first}; engine.version is {engine.version}"
            )
    times = [event.at_s for event in engine.pause_events]
    if times != sorted(times):
        yield scenario.fault("engine.pause_events", "must be in the order of time")


def resolved_switches(engine: "EngineSection") -> dict[str, object]:
    """What the release does where a switch that it has was left open; limits are filled in already."""
    filled: dict[str, object] = {
        "max_num_scheduled_tokens": engine.max_num_batched_tokens,
        "max_active": engine.max_num_seqs,
        "window_retention_tokens": release_of(engine).defaults.window_retention_tokens,
    }
    return {
        name: value
        for name, value in filled.items()
        if getattr(engine, name) is None and knows(engine.version, name)
    }
