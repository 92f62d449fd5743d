"""The runs of a sweep: every cell under every seed, and as many more seeds as a wanted precision takes.

How long they take to settle is found by MSER-5 on one run of every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite

import numpy as np

from sim.jobs.points import Outcome, Point
from sim.questions.sweep.cells import Cell
from sim.questions.sweep.measures import measures
from sim.statistics.intervals import Interval
from sim.statistics.series import FIRST_STAGE, mser5, replications_needed, two_stage_interval

Simulate = Callable[[Sequence[Point]], list[Outcome]]

WARM_UP_COLUMNS = ("arrival_s", "ttft_s", "tpot_s")
"""What `without_warm_up` needs of every request."""

_MOST_ROUNDS = 5


@dataclass(slots=True)
class Runs:
    """Outcomes by cell (in the order of the cells) and seed (in the order of replications).

    `first_stage` is how many replications told how many there had to be; None if their number was given.
    `unreached` says of cells by index what precision they fell short of.
    """

    outcomes: list[list[Outcome]]
    first_stage: int | None = None
    unreached: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Precision:
    """Half-width / mean ≤ `relative` for each of `columns`, with at most `most` replications."""

    relative: float
    columns: tuple[str, ...]
    most: int


def run_cells(cells: Sequence[Cell], seeds: Sequence[int], simulate: Simulate) -> Runs:
    """Each cell that has a scenario under each seed; the seeds are common to all cells."""
    return Runs(_more([[] for _ in cells], cells, dict.fromkeys(range(len(cells)), seeds), simulate))


def run_to_precision(
    cells: Sequence[Cell], seed_of: Callable[[int], int], wanted: Precision, simulate: Simulate
) -> Runs:
    """Ten replications of each cell, then as many as Stein's rule asks for (see `sim.statistics.series`).

    The mean is known better after the second stage, so the number is worked out anew, with the variance of
    the first stage, until it is reached. Cells with failed runs stay as they are.
    """
    runs = run_cells(cells, [seed_of(index) for index in range(FIRST_STAGE)], simulate)
    runs.first_stage = FIRST_STAGE
    for _ in range(_MOST_ROUNDS):
        more = {}
        for cell, outcomes in enumerate(runs.outcomes):
            needed = _needed(outcomes, wanted)
            if needed is not None and len(outcomes) < min(needed, wanted.most):
                more[cell] = [seed_of(index) for index in range(len(outcomes), min(needed, wanted.most))]
        if not more:
            break
        _more(runs.outcomes, cells, more, simulate)
    for cell, outcomes in enumerate(runs.outcomes):
        reached = [
            f"{column} ±{interval.relative:.1%}"
            for column, interval in _intervals(outcomes, wanted).items()
            if not interval.relative <= wanted.relative and not _is_the_same_always(interval)
        ]
        if outcomes and reached:
            runs.unreached[cell] = f"{', '.join(reached)} after {len(outcomes)} replications"
    return runs


def _more(
    outcomes: list[list[Outcome]],
    cells: Sequence[Cell],
    seeds: Mapping[int, Sequence[int]],
    simulate: Simulate,
) -> list[list[Outcome]]:
    """Simulate cells under seeds, all first seeds first: an interrupted sweep has something of every cell."""
    asked: list[tuple[int, int]] = sorted(
        (place, cell) for cell, chosen in seeds.items() for place in range(len(chosen))
    )
    points = []
    for place, cell in asked:
        scenario = cells[cell].scenario
        if scenario is not None:
            seed = seeds[cell][place]
            points.append(Point(scenario.model_copy(update={"seed": seed}), {"cell": cell, "seed": seed}))
    for outcome in simulate(points):
        at = outcome.point.label["cell"]
        assert isinstance(at, int)
        outcomes[at].append(outcome)
    return outcomes


def _is_the_same_always(of: Interval) -> bool:
    """Whether there is no interval because all values are the same: no more of them would help."""
    return isfinite(of.estimate) and not isfinite(of.low)


def _values(outcomes: Sequence[Outcome], column: str) -> list[float]:
    return [measures(o.summary)[column] for o in outcomes if o.summary is not None and o.error is None]


def _intervals(outcomes: Sequence[Outcome], wanted: Precision) -> dict[str, Interval]:
    interval = partial(two_stage_interval, first_stage=FIRST_STAGE)
    return {column: interval(_values(outcomes, column)) for column in wanted.columns}


def _needed(outcomes: Sequence[Outcome], wanted: Precision) -> int | None:
    """The largest number that any of the columns asks for; None if there is nothing to go by."""
    found = []
    for column in wanted.columns:
        values = _values(outcomes, column)
        if len(values) < len(outcomes) or len(values) < 2:
            return None
        mean = sum(values) / len(values)
        if isfinite(mean):
            found.append(replications_needed(values[:FIRST_STAGE], wanted.relative, mean=mean))
    return max((needed for needed in found if needed is not None), default=None)


def without_warm_up(cells: Sequence[Cell], pilots: Sequence[Outcome]) -> tuple[list[Cell], str]:
    """The cells with their warm-up left out, and what to say about it.

    `pilots` are one run of each cell that has a scenario, with `WARM_UP_COLUMNS`. In each, TTFT and TPOT of
    finished requests in order of arrival are cut by MSER-5, and its warm-up is the arrival of the first
    request that neither cuts. All cells get the longest warm-up of those that settle, so that they still have
    the same requests; cells that do not settle, as above their capacity, have none to find.
    """
    found = [_warm_up_s(outcome) for outcome in pilots]
    settled = [warm_up_s for warm_up_s in found if warm_up_s is not None]
    longest = max(settled, default=0.0)
    told = f"warm-up of {longest:.3g} s found by MSER-5"
    if len(settled) < len(found):
        told += f"; {len(found) - len(settled)} of {len(found)} points never settle"
    varied = [
        cell
        if cell.scenario is None
        else replace(cell, scenario=cell.scenario.model_copy(update={"warmup_s": longest}))
        for cell in cells
    ]
    return varied, told


def _warm_up_s(outcome: Outcome) -> float | None:
    """Seconds; None if the run does not settle, or there is none."""
    if outcome.samples is None or outcome.error is not None:
        return None
    arrival_s = outcome.samples["arrival_s"].astype(np.float64)
    latest = 0.0
    for name in ("ttft_s", "tpot_s"):
        series = outcome.samples[name].astype(np.float64)
        known = np.isfinite(series)
        cut = mser5(series[known])
        if not cut.is_steady:
            return None
        if cut.length:
            latest = max(latest, float(arrival_s[known][cut.length]))
    return latest
