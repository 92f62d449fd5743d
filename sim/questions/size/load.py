"""A scenario's traffic at another rate: the same requests in the same order, sent faster or slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from sim.errors import Fault
from sim.scenario import Scenario, SloTarget
from sim.scenario.workload import MixWorkload, OpenLoopSection, TraceWorkload, WorkloadSection

LEAST_REQUESTS, MOST_REQUESTS, MOST_OF_A_FLEET = 500, 6_000, 20_000
MOST_OF_A_TRACE = 10_000
LEAST_S, SESSIONS_S = 60.0, 600.0
_LIMITS = 20.0
"""A run lasts so many times the longest latency limit: a queue that grows slowly must have time to show."""
_WARM_UP = 0.1
SATURATING_PER_S = 10_000.0
"""All requests at once, as good as."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long runs are: for a time in s, within bounds on the number of requests, or a given number."""

    time_s: float
    requests: int | None = None

    def at(self, rate_per_s: float, most: int) -> int:
        """Requests of a run at a rate."""
        if self.requests is not None:
            return self.requests
        return min(most, max(LEAST_REQUESTS, ceil(self.time_s * rate_per_s)))


def run_length(scenario: Scenario, targets: tuple[SloTarget, ...], requests: int | None) -> RunLength:
    """Long enough for the promises that are to be judged."""
    waits_s = [target.limit_s for target in targets if target.metric != "tpot"]
    sessions = getattr(scenario.workload, "sessions", None) is not None
    if requests is None and isinstance(scenario.workload, TraceWorkload):
        requests = scenario.workload.num_requests or MOST_OF_A_TRACE
    return RunLength(max(SESSIONS_S if sessions else LEAST_S, *(_LIMITS * s for s in waits_s), 0.0), requests)


def load_faults(scenario: Scenario, requests: int | None) -> Iterator[Fault]:
    """Why the traffic cannot be sent at another rate."""
    section = scenario.workload
    if requests is not None and requests < 1:
        yield Fault(f"--requests {requests}", None, "must be at least 1")
    for path, part in _parts(section):
        if not isinstance(part, (OpenLoopSection, TraceWorkload)):
            message = f"{part.kind} has no rate that could be raised until a promise breaks"
            yield scenario.fault(f"{path}.kind", message)
        elif getattr(part, "rate_curve", None) is not None:
            if getattr(part, "duration_s", None) is None:
                yield scenario.fault(f"{path}.num_requests", "give duration_s, which the rate curve needs")
            if requests is not None:
                yield Fault(f"--requests {requests}", None, "would cut the rate curve; it needs all its time")


def _parts(section: WorkloadSection) -> list[tuple[str, WorkloadSection]]:
    if not isinstance(section, MixWorkload):
        return [("workload", section)]
    return [(f"workload.workloads.{name}", part) for name, part in section.workloads.items()]


def has_curve(scenario: Scenario) -> bool:
    """Whether the rate has a curve, whose time is the length of a run."""
    return any(getattr(part, "rate_curve", None) is not None for _, part in _parts(scenario.workload))


def unit(scenario: Scenario) -> str:
    """What the rate counts."""
    return "sessions/s" if getattr(scenario.workload, "sessions", None) is not None else "req/s"


def warms_up(scenario: Scenario) -> bool:
    """Whether the first tenth of a run is left out: not where arrivals have a pattern of their own."""
    replayed = any(isinstance(part, TraceWorkload) for _, part in _parts(scenario.workload))
    return not scenario.warmup_s and not has_curve(scenario) and not replayed


def at_rate(scenario: Scenario, rate_per_s: float, requests: int) -> Scenario:
    """The scenario with `rate_per_s` and so many requests; the first tenth of the time is warm-up.

    A rate curve keeps its shape and its time; parts of a mix keep their shares. A trace is sent from its
    start, or whole where it is shorter. These two have no warm-up but the scenario's.
    """
    section = scenario.workload
    warmup_s = scenario.warmup_s
    if isinstance(section, MixWorkload):
        total = sum(_rate(part) for part in section.workloads.values())
        scaled = {
            name: _sent(part, rate_per_s * _rate(part) / total, ceil(requests * _rate(part) / total))
            for name, part in section.workloads.items()
        }
        varied: WorkloadSection = section.model_copy(update={"workloads": scaled})
    else:
        varied = _sent(section, rate_per_s, requests)
    if warms_up(scenario):
        warmup_s = _WARM_UP * requests / rate_per_s
    return scenario.model_copy(update={"workload": varied, "warmup_s": warmup_s})


def peak(scenario: Scenario) -> float:
    """The largest factor of the rate curve; 1 without."""
    return max((factor for _, factor in getattr(scenario.workload, "rate_curve", None) or ()), default=1.0)


def all_at_once(scenario: Scenario) -> Scenario:
    """Its first requests as fast as they can be sent: what comes through is about the most that does."""
    section = scenario.workload
    if getattr(section, "rate_curve", None) is not None:
        scenario = scenario.model_copy(update={"workload": section.model_copy(update={"rate_curve": None})})
    return at_rate(scenario, SATURATING_PER_S, LEAST_REQUESTS)


def _rate(section: object) -> float:
    """A part's share of a mix, by its own rate; a trace without one counts as one."""
    return float(getattr(section, "rate_per_s", None) or 1.0)


def _sent(section: WorkloadSection, rate_per_s: float, requests: int) -> WorkloadSection:
    if isinstance(section, TraceWorkload):
        kept = min(requests, section.num_requests or requests)
        rate = {"rate_per_s": rate_per_s, "time_scale": None, "rate_scale": None}
        return section.model_copy(update={**rate, "num_requests": kept})
    assert isinstance(section, OpenLoopSection)
    if section.rate_curve is not None:
        return section.model_copy(update={"rate_per_s": rate_per_s})
    size = {"num_requests": requests, "duration_s": None}
    return section.model_copy(update={"rate_per_s": rate_per_s, **size})
