"""Servers whose capacity is known, in the place of simulated ones, and small scenarios that really run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import numpy as np

from sim import load_scenario
from sim.jobs.points import Outcome, Point
from sim.questions.size.promise import MET, MISSED, Judgement
from sim.questions.size.search import Ask
from sim.statistics.intervals import Interval

T = TypeVar("T")

SMALL = ("workload.duration_s=null", "workload.num_requests=60", "cluster.replicas=1")
"""The quickstart's traffic, sixty requests of it to one H100."""

ONE_AT_A_TIME = (
    "engine.max_num_seqs=1",
    "engine.async_scheduling=false",
    "workload.lengths={kind: fixed, prompt_tokens: 2000, output_tokens: 1}",
    "workload.kind=poisson",
    "workload.burstiness=null",
    "workload.duration_s=null",
    "workload.num_requests=100",
    "cluster.replicas=1",
)
"""One request at a time, all alike, one step each: the queue M/D/1."""


def one_at_a_time():
    return load_scenario("quickstart", ONE_AT_A_TIME)


def judged(share: float, wanted: float = 0.99, *, verdict: str | None = None, through: float = 10.0):
    """A judgement of runs in which this share of requests kept everything."""
    found = Interval(share, share, share, 5)
    said = verdict or (MET if share >= wanted else MISSED)
    failing = () if said == MET else ("slo_attainment",)
    return Judgement(said, found, {"slo_attainment": found}, failing, {"request_throughput": through}, [{}])


def answer(
    procedure: Generator[Ask, Judgement, T], server: Callable[[Ask], Judgement]
) -> tuple[T, list[Ask]]:
    """Let a server answer all that a procedure asks; what it found, and what it asked."""
    asked: list[Ask] = []
    reply = None
    while True:
        try:
            asked.append(procedure.send(reply))
        except StopIteration as end:
            return end.value, asked
        reply = server(asked[-1])


def m_d_1_share(rate_per_s: float, service_s: float, limit_s: float) -> float:
    """P(wait + service <= limit) of M/D/1, by Erlang's formula for the waiting time."""
    load, x = rate_per_s * service_s, limit_s - service_s
    if x < 0:
        return 0.0
    if load >= 1:
        return 0.0
    terms = 0.0
    factorial = 1.0
    for k in range(int(x / service_s) + 1):
        factorial *= max(k, 1)
        u = rate_per_s * (x - k * service_s)
        terms += (-u) ** k / factorial * np.exp(u)
    return float((1 - load) * terms)


def m_d_1_capacity(service_s: float, limit_s: float, wanted: float) -> float:
    """The rate at which the share that keeps the limit falls to what is wanted."""
    low, high = 0.0, 1.0 / service_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if m_d_1_share(middle, service_s, limit_s) >= wanted else (low, middle)
    return low


class LindleysServer:
    """In the place of `run_points`: replicas that serve one request at a time, each in the same time.

    Requests take turns at the replicas. Arrivals are drawn by seed and bent by rate, as the simulator's are.
    """

    def __init__(self, service_s: float, limit_s: float) -> None:
        self.service_s, self.limit_s = service_s, limit_s
        self.runs = 0

    def __call__(self, points: Sequence[Point]) -> list[Outcome]:
        return [self._outcome(point) for point in points]

    def _outcome(self, point: Point) -> Outcome:
        self.runs += 1
        scenario = point.scenario
        count, rate = scenario.workload.num_requests, scenario.workload.rate_per_s
        arrivals = np.cumsum(np.random.default_rng(scenario.seed).exponential(1.0, count)) / rate
        free = np.zeros(scenario.cluster.replicas)
        ends = np.empty(count)
        for i, at in enumerate(arrivals):
            turn = i % len(free)
            ends[i] = free[turn] = max(at, free[turn]) + self.service_s
        kept = (ends - arrivals <= self.limit_s)[arrivals >= scenario.warmup_s]
        share = float(kept.mean())
        return Outcome(
            point,
            "",
            {
                "completed": len(kept),
                "request_throughput": count / float(ends.max()),
                "slo_attainment": share,
                "slo_judged_requests": len(kept),
                "slo": {"e2e_p95": {"attainment": share}},
                "thin_percentiles": [],
            },
        )
