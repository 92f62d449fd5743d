"""From the policies that a scenario names to the objects that an engine takes, new ones for each replica."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import cast

from scheduler.policies import VICTIM_POLICIES, WAITING_ORDERS, AnyWaitingOrder, VictimPolicy, policy_class
from sim.cluster.host_offload import OffloadSpec
from sim.errors import InputError
from sim.scenario import EngineSection, Scenario
from sim.scenario.policies import OffloadMode, Plugin
from sim.scenario.section import Section


@dataclass(frozen=True, slots=True)
class EnginePolicies:
    """Makers of the policies of one engine: policies may keep accounts, so replicas do not share them."""

    victim_policy: Callable[[], VictimPolicy]
    waiting_order: Callable[[], AnyWaitingOrder]


def engine_policies(scenario: Scenario, engine: EngineSection, *, allow_plugins: bool) -> EnginePolicies:
    """The makers for a scenario; `engine` has its defaults filled in.

    Raises `InputError` for a class of the user's own that is not allowed, not found, or is no such policy.
    """
    assert engine.victim_policy is not None
    assert engine.waiting_order is not None
    victim = _maker(scenario, "victim_policy", engine.victim_policy, VICTIM_POLICIES, "choose", allow_plugins)
    order = _maker(scenario, "waiting_order", engine.waiting_order, WAITING_ORDERS, "key", allow_plugins)
    return EnginePolicies(
        cast("Callable[[], VictimPolicy]", victim), cast("Callable[[], AnyWaitingOrder]", order)
    )


def policy_notes(engine: EngineSection, *, has_priorities: bool) -> list[str]:
    """What a reader should know of how policies and workload fit; `engine` has its defaults filled in."""
    assert engine.waiting_order is not None
    kind = engine.waiting_order.kind
    if has_priorities and kind in ("fcfs", "shortest_job_first", "fair"):
        return [f"requests have priorities, but the waiting order {kind} does not look at them"]
    return []


def offload_spec(engine: EngineSection, bytes_per_token: float) -> OffloadSpec | None:
    """Where preempted requests keep their KV, if they do; `bytes_per_token` on one GPU."""
    mode = engine.preemption_mode
    if not isinstance(mode, OffloadMode):
        return None
    assert mode.bandwidth_gb_per_s is not None
    capacity_bytes = inf if mode.host_memory_gb is None else mode.host_memory_gb * 1e9
    return OffloadSpec(bytes_per_token, mode.bandwidth_gb_per_s * 1e9, capacity_bytes)


def _maker(
    scenario: Scenario,
    field: str,
    section: Section,
    registry: Mapping[str, type],
    method: str,
    allow_plugins: bool,
) -> Callable[[], object]:
    if not isinstance(section, Plugin):
        options = section.model_dump()
        return partial(policy_class(registry, options.pop("kind")), **options)
    try:
        if not allow_plugins:
            raise ValueError(f"{section.path} is code of your own; allow it with --allow-plugins")
        maker = partial(load_class(section.path, method), **section.options)
        _try(maker, section.path)
    except ValueError as error:
        raise InputError([scenario.fault(f"engine.{field}", str(error))]) from error
    return maker


def load_class(path: str, method: str) -> type:
    """The class at a dotted path, modules of the current folder included; `ValueError` says what is wrong."""
    module_name, name = path.rsplit(".", 1)
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{path} cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise ValueError(f"{path} is no class: module {module_name} has no class {name}")
    if not callable(getattr(found, method, None)):
        raise ValueError(f"{path} has no method {method}")
    return found


def _try(maker: Callable[[], object], path: str) -> None:
    """Make one now: options that the class does not take are the user's mistake, told before the run."""
    try:
        maker()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be made: {error}") from error
