"""Traces that cannot be opened, named before anything runs: else each of many runs would find out alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sim.errors import Fault, InputError
from sim.scenario import Scenario
from sim.scenario.workload import TraceWorkload, plain_parts
from sim.workload.trace_reader import open_trace


def trace_faults(scenario: Scenario, base: Scenario) -> Iterator[Fault]:
    """Why traces of a scenario cannot be opened on this machine, with the place that names the file.

    A scenario made in code from `base` knows no places: where it kept the trace, they are those of `base`.
    """
    original = plain_parts(base.workload)
    for field, part in plain_parts(scenario.workload).items():
        if not isinstance(part, TraceWorkload):
            continue
        named = scenario.fault(f"{field}.path", "")
        if named.where is None and getattr(original.get(field), "path", None) == part.path:
            named = base.fault(f"{field}.path", "")
        try:
            with open_trace(Path(part.path), named) as lines:
                lines.close()
        except InputError as error:
            yield from error.faults
