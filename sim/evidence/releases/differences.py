"""What distinguishes two releases for one scenario: rules, defaults, and what the cost models say of them.

Each difference can be undone alone in the newer release, nearly always by one setting of the scenario; all of
them undone together make the older release of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cost_models import engine_profile
from sim.scenario import EngineSection, Scenario
from sim.scenario.resolve import release_of
from sim.scenario.rules import EVERYWHERE, RULE_NAMES, SINCE, rule_value
from sim.setup import EngineSetup, engine_setup

STEP_TIMES = "step times and front end"
KV_MEMORY = "KV blocks by the memory plan"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the releases do differently, and the fields of the engine that undo it in the newer one.

    `times_of`: the release whose times the cost model is to take instead; no field can say that.
    """

    kind: Literal["rule", "default", "cost model"]
    name: str
    older: str
    newer: str
    fields: Mapping[str, object] = field(default_factory=dict)
    times_of: str | None = None

    @property
    def setting(self) -> str | None:
        """The `--set` that undoes it by hand."""
        if self.times_of is not None:
            return None
        if self.kind == "rule":
            return f"engine.rules.{self.name}={self.older}"
        ((name, value),) = self.fields.items()
        return f"engine.{name}={_plain(value)}"

    def undo(self, scenario: Scenario) -> Scenario:
        """The newer release's scenario without it."""
        engine = scenario.engine
        fields = dict(self.fields)
        if self.kind == "rule":
            fields = {"rules": {**engine.rules, **fields}}
        return scenario.model_copy(update={"engine": engine.model_copy(update=fields)})


def differences(older: Scenario, newer: Scenario, *, allow_plugins: bool = False) -> list[Difference]:
    """Everything in which two scenarios differ that differ only in `engine.version`."""
    costs = _costs(older, newer, allow_plugins)
    return [*_rules(older.engine, newer.engine), *_defaults(older, newer), *costs]


def with_times_of(version: str, allow_plugins: bool, scenario: Scenario, setup: EngineSetup) -> EngineSetup:
    """The engine of a scenario, whose steps and front end take the time that they take in another release."""
    own, other = setup.replica, _as_in(scenario, setup.engine, version, allow_plugins).replica
    replica = replace(other, scheduler=own.scheduler, kv_cache=own.kv_cache, release=own.release)
    return replace(setup, replica=replica)


def _rules(older: EngineSection, newer: EngineSection) -> Iterator[Difference]:
    before, after = release_of(older), release_of(newer)
    for name in RULE_NAMES:
        was, now = rule_value(before, name), rule_value(after, name)
        if was != now and getattr(newer, name, None) is None:
            yield Difference("rule", name, _plain(was), _plain(now), {name: was})


def _defaults(older: Scenario, newer: Scenario) -> Iterator[Difference]:
    """Fields that the scenario leaves to the release."""
    before, after = older.resolved.engine, newer.resolved.engine
    told_elsewhere = {*SINCE, *EVERYWHERE}
    if newer.engine.num_gpu_blocks_override is not None:
        told_elsewhere.add("gpu_memory_utilization")  # of no use then
    for name in type(after).model_fields:
        was, now = getattr(before, name), getattr(after, name)
        if was != now and getattr(newer.engine, name) is None and name not in told_elsewhere:
            yield Difference("default", name, _plain(was), _plain(now), {name: was})


def _costs(older: Scenario, newer: Scenario, allow_plugins: bool) -> Iterator[Difference]:
    version = older.engine.version
    setup = engine_setup(newer, allow_plugins=allow_plugins)
    if newer.engine.num_gpu_blocks_override is None:
        was = _as_in(newer, setup.engine, version, allow_plugins).replica.kv_cache.num_blocks
        now = setup.replica.kv_cache.num_blocks
        if was != now:
            yield Difference(
                "cost model", KV_MEMORY, f"{was:,}", f"{now:,}", {"num_gpu_blocks_override": was}
            )
    if engine_profile(version) != engine_profile(newer.engine.version):
        yield Difference("cost model", STEP_TIMES, version, newer.engine.version, times_of=version)


def _as_in(scenario: Scenario, engine: EngineSection, version: str, allow_plugins: bool) -> EngineSetup:
    """What the cost models of another release make of an engine with every setting written out."""
    engine = engine.model_copy(update={"version": version})
    return engine_setup(scenario.model_copy(update={"engine": engine}), allow_plugins=allow_plugins)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
