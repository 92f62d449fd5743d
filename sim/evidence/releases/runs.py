"""The runs of a comparison: the same requests under both releases, then with each difference undone alone.

A rule that nobody asks for while the newer release runs cannot have moved anything, so it is not undone. Runs
are independent and go to a pool of processes; results are the same whatever their number.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from scheduler.release import parse_version
from sim.errors import InputError, input_error
from sim.evidence.releases.differences import (
    Difference,
    differences,
    setup_with_times_of,
)
from sim.random_streams import streams
from sim.scenario import EngineSection, Scenario, load_scenario
from sim.setup import engine_setup
from sim.simulation import simulate_workload
from sim.values import Json
from sim.workload import Limits, build_workload

OnDone = Callable[[str], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: a scenario, perhaps with the step times of another release.

    `watch` has it note which rules are asked for.
    """

    scenario: Scenario
    times_of: str | None = None
    watch: bool = False
    allow_plugins: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: its summary, the rules that were asked for, and what ended it before its time."""

    summary: dict[str, Json]
    asked: frozenset[str] = frozenset()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference, and the newer release's run without it; None if nobody asked for the rule."""

    difference: Difference
    undone: Outcome | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two releases on one workload. `older` and `newer` are the scenarios, `command` runs one by hand."""

    command: str
    older: Scenario
    newer: Scenario
    older_outcome: Outcome
    newer_outcome: Outcome
    effects: tuple[Effect, ...]


def compare_releases(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    older: str = "0.16.0",
    newer: str = "0.33.0",
    jobs: int = 1,
    on_done: OnDone | None = None,
    allow_plugins: bool = False,
) -> Comparison:
    """Run a scenario under two releases and find what each of their differences does.

    `on_done` is told of each run that is over. Raises `InputError` for a scenario that either release cannot
    run.
    """
    _check_order(older, newer)
    before, after = (
        load_scenario(name_or_path, [*overrides, f"engine.version='{version}'"]) for version in (older, newer)
    )
    found = differences(before, after, allow_plugins=allow_plugins)
    with _Pool(jobs, on_done or (lambda name: None)) as pool:
        first = pool.submit(f"vLLM {older}", Arm(before, allow_plugins=allow_plugins))
        second = pool.submit(f"vLLM {newer}", Arm(after, watch=True, allow_plugins=allow_plugins))
        with_all = _succeeded(second.result())
        undone = [
            pool.submit(f"without {each.name}", Arm(each.undo(after), each.times_of, False, allow_plugins))
            if _may_matter(each, with_all)
            else None
            for each in found
        ]
        results = [run.result() if run else None for run in undone]
        effects = tuple(Effect(each, outcome) for each, outcome in zip(found, results, strict=True))
        words = ["dryserve", "run", name_or_path, *(part for each in overrides for part in ("--set", each))]
        return Comparison(shlex.join(words), before, after, _succeeded(first.result()), with_all, effects)


def _check_order(older: str, newer: str) -> None:
    numbers = []
    for option, version in (("--from", older), ("--to", newer)):
        try:
            numbers.append(parse_version(version))
        except ValueError as error:
            raise input_error(str(error), where=f"{option} {version}") from None
    if numbers[0] >= numbers[1]:
        raise input_error("must be older than the other release", where=f"--from {older} --to {newer}")


def _may_matter(difference: Difference, with_all: Outcome) -> bool:
    """A rule that was never asked for cannot; what is a field of the engine too is asked for as that."""
    if difference.kind != "rule" or difference.name in EngineSection.model_fields:
        return True
    return difference.name in with_all.asked


def _succeeded(outcome: Outcome) -> Outcome:
    if not outcome.summary:
        raise input_error(str(outcome.failure))
    return outcome


def run_arm(arm: Arm) -> Outcome:
    """Simulate one arm. What makes it fail is told in the outcome."""
    scenario, asked = arm.scenario, set[str]()
    try:
        if arm.times_of is None:
            setup = engine_setup(scenario, allow_plugins=arm.allow_plugins)
        else:
            setup = setup_with_times_of(scenario, arm.times_of, allow_plugins=arm.allow_plugins)
        if arm.watch:
            of = setup.replica.release
            watched = replace(of, rules=_watch(of.rules, asked), defaults=_watch(of.defaults, asked))
            setup = replace(setup, replica=replace(setup.replica, release=watched))
        limits = Limits(setup.replica.scheduler.max_model_len)
        workload = build_workload(scenario, streams(scenario.seed), limits)
        result = simulate_workload(scenario, setup, workload, keep_steps=False)
    except InputError as error:
        return Outcome({}, failure=str(error))
    stuck = None if result.stuck is None else str(result.stuck)
    return Outcome(result.summary, frozenset(asked), stuck)


def _watch(record: _T, asked: set[str]) -> _T:
    """An equal record that notes in `asked` which of its fields are read."""

    def note(self: object, name: str) -> object:
        asked.add(name)
        return object.__getattribute__(self, name)

    kind = type(record)
    values = {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]
    watched: type[_T] = type("Watched", (kind,), {"__slots__": (), "__getattribute__": note})
    return watched(**values)


class _Pool:
    """Processes for runs, or none: then a run is simulated when it is submitted."""

    def __init__(self, jobs: int, on_done: OnDone) -> None:
        self._on_done = on_done
        self._processes = ProcessPoolExecutor(jobs) if jobs > 1 else None

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *error: object) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)

    def submit(self, name: str, arm: Arm) -> Future[Outcome]:
        """Simulate an arm, now or soon."""
        if self._processes is not None:
            run = self._processes.submit(run_arm, arm)
        else:
            run = Future[Outcome]()
            run.set_result(run_arm(arm))
        run.add_done_callback(lambda _: self._on_done(name))
        return run
