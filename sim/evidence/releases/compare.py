"""The runs of a comparison: the same requests under both releases, then with each difference undone alone.

The newer release is run first, watched for the rules that are asked for: one that nobody asks for cannot have
moved anything, so it is not undone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

from scheduler.release import parse_version
from sim.errors import input_error
from sim.evidence.releases.answer import Effect, ReleaseComparison
from sim.evidence.releases.differences import Difference, differences, with_times_of
from sim.jobs.options import RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.scenario import EngineSection, Scenario, load_scenario
from sim.setup import EngineSetup
from sim.simulation import simulate

_T = TypeVar("_T")


def compare_releases(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    older: str = "0.16.0",
    newer: str = "0.33.0",
    options: RunOptions | None = None,
) -> ReleaseComparison:
    """Run a scenario under two releases and find what each of their differences does.

    `options` says how and where the runs are made. Raises `InputError` for a scenario that either release
    cannot run.
    """
    options = options or RunOptions()
    _check_order(older, newer)
    before, after = (
        load_scenario(name_or_path, [*overrides, f"engine.version='{version}'"]) for version in (older, newer)
    )
    found = differences(before, after, allow_plugins=options.allow_plugins)
    with_all, asked = _watched_run(after, options)
    tried = [each for each in found if _may_matter(each, asked)]
    points = [Point(before), *(_without(each, after, options) for each in tried)]
    with_none, *undone = run_points(points, options=options)
    if not with_none.summary:
        raise input_error(str(with_none.error))
    by_name = {each.name: outcome for each, outcome in zip(tried, undone, strict=True)}
    words = ["dryserve", "run", name_or_path, *(part for each in overrides for part in ("--set", each))]
    return ReleaseComparison(
        command=shlex.join(words),
        older=before,
        base=after,
        older_outcome=with_none,
        newer_outcome=with_all,
        effects=tuple(Effect(each, by_name.get(each.name)) for each in found),
    )


def _check_order(older: str, newer: str) -> None:
    numbers = []
    for option, version in (("--from", older), ("--to", newer)):
        try:
            numbers.append(parse_version(version))
        except ValueError as error:
            raise input_error(str(error), where=f"{option} {version}") from None
    if numbers[0] >= numbers[1]:
        raise input_error("must be older than the other release", where=f"--from {older} --to {newer}")


def _may_matter(difference: Difference, asked: set[str]) -> bool:
    """A rule that was never asked for cannot; what is a field of the engine too is asked for as that."""
    if difference.kind != "rule" or difference.name in EngineSection.model_fields:
        return True
    return difference.name in asked


def _without(difference: Difference, scenario: Scenario, options: RunOptions) -> Point:
    """The newer release's run with one difference undone."""
    change = None
    if difference.times_of is not None:
        change = partial(with_times_of, difference.times_of, options.allow_plugins)
    return Point(difference.undo(scenario), {"without": difference.name}, change=change)


def _watched_run(scenario: Scenario, options: RunOptions) -> tuple[Outcome, set[str]]:
    """What comes of a scenario, and the names of the rules that were asked for; run in this process."""
    asked = set[str]()

    def watched(_: Scenario, setup: EngineSetup) -> EngineSetup:
        of = setup.replica.release
        release = replace(of, rules=_watch(of.rules, asked), defaults=_watch(of.defaults, asked))
        return replace(setup, replica=replace(setup.replica, release=release))

    result = simulate(scenario, keep_steps=False, allow_plugins=options.allow_plugins, change=watched)
    error = None if result.stuck is None else f"the run was ended by a {result.stuck}"
    return Outcome(Point(scenario), "", result.summary, error), asked


def _watch(record: _T, asked: set[str]) -> _T:
    """An equal record that notes in `asked` which of its fields are read."""

    def note(self: object, name: str) -> object:
        asked.add(name)
        return object.__getattribute__(self, name)

    kind = type(record)
    values = {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]
    watched: type[_T] = type("Watched", (kind,), {"__slots__": (), "__getattribute__": note})
    return watched(**values)
