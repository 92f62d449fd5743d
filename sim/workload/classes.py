"""What belongs to a class of requests: its priority and its clients' patience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sim.errors import InputError
from sim.random_streams import Streams
from sim.scenario.requests import ClassSection, TimeoutsSection
from sim.scenario.scenario import Scenario
from sim.scenario.workload import unknown_class
from sim.values import Floats
from sim.workload.table import RequestTable
from sim.workload.times import draw_times_s


def draw_timeouts(
    section: TimeoutsSection, count: int, streams: Streams, of: str = ""
) -> tuple[Floats, Floats]:
    """Seconds from arrival after which each of `count` clients without a first token, and without the last
    one, hangs up; inf: never. `of`: the class, where the section is that of a class.
    """
    name = f"timeouts.{of}." if of else "timeouts."
    never = np.full(count, np.inf)
    first, total = (
        never if time is None else draw_times_s(time, count, streams(name + which))
        for which, time in (("first_token", section.first_token_s), ("total", section.total_s))
    )
    return first, total


def by_class(
    scenario: Scenario, classes: Mapping[str, ClassSection], table: RequestTable, streams: Streams
) -> RequestTable:
    """The table with what its classes say; raises `InputError` for a class that no request is of."""
    names = table.class_names
    faults = [
        scenario.fault(f"workload.classes.{name}", unknown_class(name, names))
        for name in classes
        if name not in names
    ]
    if faults:
        raise InputError(faults)
    priority = table.priority.copy()
    never = np.full(len(table), np.inf)
    first_s = never.copy() if table.first_token_timeout_s is None else table.first_token_timeout_s.copy()
    total_s = never.copy() if table.timeout_s is None else table.timeout_s.copy()
    for name, section in classes.items():
        rows = table.class_index == names.index(name)
        if section.priority is not None:
            priority[rows] = section.priority
        if section.timeouts is not None:
            first_s[rows], total_s[rows] = draw_timeouts(section.timeouts, int(rows.sum()), streams, name)
    return replace(
        table,
        priority=priority,
        first_token_timeout_s=first_s if np.isfinite(first_s).any() else None,
        timeout_s=total_s if np.isfinite(total_s).any() else None,
    )
