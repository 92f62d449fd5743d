"""The highest rate that a promise survives, and the fleet for a rate: procedures that ask for runs.

They are generators: each `Ask` they yield is answered by a `Judgement`. So `Rounds` can have the runs of all
candidates made together, and no procedure knows how.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import NamedTuple, TypeVar

from sim.jobs.points import Outcome, Point
from sim.questions.size.load import (
    MOST_OF_A_FLEET,
    MOST_REQUESTS,
    SATURATING_PER_S,
    RunLength,
    all_at_once,
    at_rate,
)
from sim.questions.size.promise import BROKEN, CLOSE, NO_DATA, Judgement, Promise, judge
from sim.scenario import Scenario

_START, _BEYOND, _LIGHT = 0.7, 1.3, 0.05
"""Of the throughput with all requests at once: where the search starts, where promises break as a
rule, and next to no load."""
_COARSE = 1.08
_FEW = 3
_DOUBLINGS = 12
_MOST_MORE = 12
"""Replicas beyond the arithmetic that are tried before a fleet is given up."""


class Ask(NamedTuple):
    """Runs wanted: a fleet of so many replicas at a rate, under the first so many seeds."""

    replicas: int
    rate_per_s: float
    seeds: int


Search = Generator[Ask, Judgement, "Capacity"]
Found = TypeVar("Found")
Simulate = Callable[[Sequence[Point]], list[Outcome]]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate found to keep the promise, and the lowest found to break it (None: not reached).

    `kept` judges the runs at the first, `broken` those at the second; a rate of 0 was kept by none.
    """

    replicas: int
    rate_per_s: float
    above_per_s: float | None
    kept: Judgement | None
    broken: Judgement | None

    @property
    def error(self) -> str | None:
        """What went wrong with a run so that nothing can be said; None if nothing did."""
        ends = (self.kept, self.broken)
        return next((each.error for each in ends if each and each.verdict in (BROKEN, NO_DATA)), None)


def find_capacity(replicas: int, seeds: int, precision: float, peak: float = 1.0) -> Search:
    """Bisect on the lower ends of intervals, until the two rates differ by `precision`.

    One seed leads near the place, then all seeds decide. `peak` is how far the rate rises above its mean.
    """
    first = yield Ask(replicas, SATURATING_PER_S, 1)
    if first.verdict == BROKEN:
        return Capacity(replicas, 0.0, None, None, first)
    through = (first.numbers.get("request_throughput") or 1.0) / peak
    low, high = yield from _bracket(replicas, through)
    while low is not None and high is not None and high / low > _COARSE:
        middle = sqrt(low * high)
        if (yield Ask(replicas, middle, 1)).is_met:
            low = middle
        else:
            high = middle
    return (yield from _decide(replicas, seeds, precision, low or _LIGHT * through, _LIGHT * through))


def _bracket(replicas: int, through: float) -> Generator[Ask, Judgement, tuple[float | None, float | None]]:
    """A rate that holds and one that does not, under one seed; None where there is none."""
    start = _START * through
    if (yield Ask(replicas, start, 1)).is_met:
        low, high = start, _BEYOND * through
        for _ in range(_DOUBLINGS):
            if not (yield Ask(replicas, high, 1)).is_met:
                return low, high
            low, high = high, 2.0 * high
        return low, None
    half, light = start / 2.0, _LIGHT * through
    if (yield Ask(replicas, half, 1)).is_met:
        return half, start
    return (light if (yield Ask(replicas, light, 1)).is_met else None), half


def _decided(replicas: int, rate_per_s: float, stages: Sequence[int]) -> Generator[Ask, Judgement, Judgement]:
    """The judgement of so many seeds; while it is too close to say, of those of the next stage."""
    for seeds in stages:
        found = yield Ask(replicas, rate_per_s, seeds)
        if found.verdict != CLOSE:
            break
    return found


def stages(*seeds: int) -> tuple[int, ...]:
    """Numbers of seeds that are tried in turn, a few first."""
    last = seeds[-1]
    return tuple(sorted({min(each, last) for each in (_FEW, *seeds)}))


def _decide(replicas: int, seeds: int, precision: float, guess: float, light: float) -> Search:
    """From a guess on with all seeds: down until it holds, up until it does not, then between the two."""
    low: tuple[float, Judgement] | None = None
    high: tuple[float, Judgement] | None = None
    rate, step = guess, _COARSE
    while low is None or high is None or high[0] / low[0] > 1.0 + precision:
        found = yield from _decided(replicas, rate, stages(seeds))
        if found.verdict == BROKEN:
            return Capacity(replicas, 0.0, None, None, found)
        if found.is_met:
            low = (rate, found)
        else:
            high = (rate, found)
            if low is None and rate <= light:
                return Capacity(replicas, 0.0, rate, None, found)
        if low is not None and high is not None:
            rate = sqrt(low[0] * high[0])
        elif low is not None:
            if rate > SATURATING_PER_S:
                return Capacity(replicas, rate, None, found, None)
            rate, step = rate * step, step * step
        else:
            rate, step = max(light, rate / step), step * step
    return Capacity(replicas, low[0], high[0], low[1], high[1])


@dataclass(frozen=True, slots=True)
class Fleet:
    """The smallest fleet that keeps the promise at the rate; `tried` judges every size that was simulated.

    `arithmetic` is the rate over one replica's capacity, rounded up: where the search began. `replicas` is
    None if no fleet was found.
    """

    rate_per_s: float
    arithmetic: int
    replicas: int | None
    tried: dict[int, Judgement] = field(default_factory=dict)


def find_fleet(
    capacity: Capacity, rate_per_s: float, seeds: int, most_seeds: int
) -> Generator[Ask, Judgement, Fleet]:
    """Simulate whole fleets: from what arithmetic says up until one keeps the promise, or down until one does
    not, in growing strides, then between the two.

    Where a verdict is too close to say, more seeds are asked for; what stays close counts as missed. One
    replica more is simulated under one seed, for the figure.
    """
    arithmetic = max(1, ceil(rate_per_s / capacity.rate_per_s - 1e-9))
    fleet = Fleet(rate_per_s, arithmetic, None)
    tried = fleet.tried

    def attempt(replicas: int) -> Generator[Ask, Judgement, bool]:
        tried[replicas] = yield from _decided(replicas, rate_per_s, stages(seeds, most_seeds))
        return tried[replicas].is_met

    fails, keeps, step = 0, 0, 1
    most = arithmetic + max(_MOST_MORE, arithmetic)
    trial = arithmetic
    while not keeps:
        if (yield from attempt(trial)):
            keeps = trial
        elif trial == most or tried[trial].verdict in (BROKEN, NO_DATA):
            return fleet
        else:
            fails, trial, step = trial, min(most, trial + step), 2 * step
    step = 1
    while not fails and keeps > 1:
        trial, step = max(1, keeps - step), 2 * step
        if (yield from attempt(trial)):
            keeps = trial
        else:
            fails = trial
    while keeps - fails > 1 and fails:
        trial = (keeps + fails) // 2
        if (yield from attempt(trial)):
            keeps = trial
        else:
            fails = trial
    replicas = keeps
    if replicas + 1 not in tried:
        tried[replicas + 1] = yield Ask(replicas + 1, rate_per_s, 1)
    return Fleet(rate_per_s, arithmetic, replicas, dict(sorted(tried.items())))


class Rounds:
    """Answers what the procedures of many candidates ask, with one call of `simulate` a round.

    Every run is made once, and each procedure is sent the judgement of the runs that it asked for.
    """

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
