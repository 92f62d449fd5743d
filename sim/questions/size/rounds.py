"""The runs of all candidates together: each says what it wants next, and all wants are simulated at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from sim.jobs.points import Outcome, Point
from sim.questions.size.load import (
    MOST_OF_A_FLEET,
    MOST_REQUESTS,
    SATURATING_PER_S,
    RunLength,
    all_at_once,
    at_rate,
)
from sim.questions.size.promise import Judgement, Promise, judge
from sim.questions.size.search import Ask
from sim.scenario import Scenario

Found = TypeVar("Found")
Simulate = Callable[[Sequence[Point]], list[Outcome]]


class Bench:
    """Answers what procedures ask, for any number of candidates; every run is made once."""

    def __init__(self, promise: Promise, length: RunLength, simulate: Simulate) -> None:
        self._promise, self._length, self._simulate = promise, length, simulate
        self._known: dict[tuple[int, int, float, int], Outcome] = {}

    def run(
        self,
        scenarios: Mapping[int, Scenario],
        procedures: Mapping[int, Generator[Ask, Judgement, Found]],
    ) -> dict[int, Found]:
        """Drive the procedure of each candidate, by its number, to its end."""
        found: dict[int, Found] = {}
        wanted: dict[int, Ask] = {}
        for number, procedure in procedures.items():
            _advance(number, procedure, None, wanted, found)
        while wanted:
            asked = dict(wanted)
            self._make(scenarios, asked)
            wanted.clear()
            for number, ask in asked.items():
                seeds = range(ask.seeds)
                outcomes = [self._known[number, ask.replicas, ask.rate_per_s, seed] for seed in seeds]
                _advance(number, procedures[number], judge(self._promise, outcomes), wanted, found)
        return found

    def _make(self, scenarios: Mapping[int, Scenario], asked: Mapping[int, Ask]) -> None:
        """Simulate what is asked and not known yet, the same seed of every candidate next to one another."""
        points, keys = [], []
        for seed in range(max(ask.seeds for ask in asked.values())):
            for number, ask in asked.items():
                key = (number, ask.replicas, ask.rate_per_s, seed)
                if seed < ask.seeds and key not in self._known:
                    keys.append(key)
                    points.append(Point(self._scenario(scenarios[number], ask, seed), {"candidate": number}))
        if points:
            self._known |= dict(zip(keys, self._simulate(points), strict=True))

    def _scenario(self, candidate: Scenario, ask: Ask, seed: int) -> Scenario:
        cluster = candidate.cluster.model_copy(update={"replicas": ask.replicas})
        if ask.rate_per_s == SATURATING_PER_S:
            sent = all_at_once(candidate)
        else:
            most = MOST_REQUESTS if ask.replicas == 1 else MOST_OF_A_FLEET
            sent = at_rate(candidate, ask.rate_per_s, self._length.at(ask.rate_per_s, most))
        return sent.model_copy(update={"cluster": cluster, "seed": candidate.seed + seed})


def _advance(
    number: int,
    procedure: Generator[Ask, Judgement, Found],
    answer: Judgement | None,
    wanted: dict[int, Ask],
    found: dict[int, Found],
) -> None:
    try:
        wanted[number] = next(procedure) if answer is None else procedure.send(answer)
    except StopIteration as end:
        found[number] = end.value
