"""Makers of the policies that a scenario names, those of a user's own code among them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from scheduler.policies import VICTIM_POLICIES, WAITING_ORDERS, AnyWaitingOrder, VictimPolicy, policy_class
from sim.errors import InputError
from sim.scenario import Scenario
from sim.scenario.policies import Plugin
from sim.scenario.section import Section


def victim_policy_maker(scenario: Scenario, *, allow_plugins: bool) -> Callable[[], VictimPolicy]:
    """Makes the victim policy of one engine: policies may keep accounts, so replicas do not share them.

    Raises `InputError` for a class of the user's own that is not allowed, not found, or is no such policy.
    """
    section = scenario.resolved.engine.victim_policy
    made = _maker(scenario, "victim_policy", section, VICTIM_POLICIES, "choose", allow_plugins)
    return cast("Callable[[], VictimPolicy]", made)


def waiting_order_maker(scenario: Scenario, *, allow_plugins: bool) -> Callable[[], AnyWaitingOrder]:
    """Makes the waiting order of one engine; raises as `victim_policy_maker` does."""
    section = scenario.resolved.engine.waiting_order
    made = _maker(scenario, "waiting_order", section, WAITING_ORDERS, "key", allow_plugins)
    return cast("Callable[[], AnyWaitingOrder]", made)


def _maker(
    scenario: Scenario,
    field: str,
    section: Section | None,
    registry: Mapping[str, type],
    method: str,
    allow_plugins: bool,
) -> Callable[[], object]:
    assert section is not None, "a resolved scenario names every policy"
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
