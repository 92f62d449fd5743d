"""The same requests under two releases, then with each difference undone alone: the runs, and what they say
as an answer of tables, a document and plain data.

The newer release is run first, watched for the rules that are asked for: one that nobody asks for cannot have
moved anything, so it is not undone.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from scheduler.release import parse_version
from sim.errors import input_error
from sim.evidence.releases.differences import Difference, differences, with_times_of
from sim.jobs.options import RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.report.answer import ScenarioAnswer, records
from sim.report.document import Block, Bullets, Heading, Paragraph, Preformatted, Table
from sim.scenario import EngineSection, Scenario, load_scenario
from sim.scenario.rules import noting
from sim.setup import EngineSetup
from sim.simulation import simulate
from sim.values import Json
from sim.version import dryserve_version

if TYPE_CHECKING:
    import pandas as pd


SMALL = 0.001
"""Relative changes, and changes of shares, below which a difference is only named."""


@dataclass(frozen=True, slots=True)
class SummaryMetric:
    """A number of the summary, how it is called, and whether changes are told as ratio, count or share."""

    key: str
    name: str
    short: str
    kind: Literal["ratio", "count", "share"] = "ratio"


METRICS = (
    SummaryMetric("output_throughput", "output throughput (tok/s)", "tok/s"),
    SummaryMetric("median_ttft_ms", "TTFT p50 (ms)", "TTFT p50"),
    SummaryMetric("p99_ttft_ms", "TTFT p99 (ms)", "TTFT p99"),
    SummaryMetric("median_tpot_ms", "TPOT p50 (ms)", "TPOT p50"),
    SummaryMetric("p99_tpot_ms", "TPOT p99 (ms)", "TPOT p99"),
    SummaryMetric("median_e2el_ms", "E2E p50 (ms)", "E2E p50"),
    SummaryMetric("p99_e2el_ms", "E2E p99 (ms)", "E2E p99"),
    SummaryMetric("completed", "completed requests", "completed", "count"),
    SummaryMetric("num_preemptions", "preemptions", "preempt.", "count"),
    SummaryMetric("recomputed_token_share", "recomputed tokens", "recomp.", "share"),
    SummaryMetric("prefix_cache_hit_rate", "prefix hit rate", "hits", "share"),
    SummaryMetric("slo_attainment", "SLO attainment", "SLO", "share"),
)


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference, and the newer release's run without it; None if nobody asked for the rule."""

    difference: Difference
    undone: Outcome | None

    @property
    def has_failed(self) -> bool:
        """Whether the run without it did not come to its end."""
        return self.undone is not None and self.undone.error is not None


@dataclass(frozen=True, slots=True, repr=False)
class ReleaseComparison(ScenarioAnswer):
    """Two releases on one workload. `older` and `base` are the scenarios, `command` runs one by hand."""

    kind: ClassVar[str] = "release"

    command: str
    older: Scenario
    base: Scenario
    older_outcome: Outcome
    newer_outcome: Outcome
    effects: tuple[Effect, ...]

    @property
    def newer(self) -> Scenario:
        """The newer release's scenario."""
        return self.base

    @property
    def question(self) -> str:
        """The scenario and the two releases."""
        return f"{self.base.name}: vLLM {self.older.engine.version} and {self.base.engine.version}"

    def asked(self) -> dict[str, Json]:
        """The releases that are compared."""
        return {"older": self.older.engine.version, "newer": self.base.engine.version}

    def folder_in(self, root: Path) -> Path:
        """`root`/<scenario>-<older>-<newer>-<hash of both scenarios>."""
        told = "\n".join([dryserve_version(), self.older.dump_resolved(), self.base.dump_resolved()])
        digest = hashlib.sha256(told.encode()).hexdigest()[:8]
        return root / f"{self.base.name}-{'-'.join(map(str, self.asked().values()))}-{digest}"

    def tables(self) -> dict[str, pd.DataFrame]:
        """One row for each run: both releases, then the newer with each difference undone alone."""
        import pandas as pd

        columns = ["run", "kind", "name", "older", "newer", "set", "failure", *(m.key for m in METRICS)]
        rows = [
            ["release", "", scenario.engine.version, "", "", "", *_numbers(outcome)]
            for scenario, outcome in self._releases
        ]
        for effect in self.effects:
            it = effect.difference
            run = "undone" if effect.undone else "not asked for"
            numbers = _numbers(effect.undone or self.newer_outcome)
            rows.append([run, it.kind, it.name, it.older, it.newer, it.setting or "", *numbers])
        return {"releases.csv": pd.DataFrame(rows, columns=columns, dtype=object)}

    def as_json(self) -> dict[str, Json]:
        """What was asked, and every run as in the table."""
        return {**self.asked(), "command": self.command, "runs": records(self.tables()["releases.csv"])}

    def blocks(self) -> list[Block]:
        """Both releases side by side, what each difference does, what moved nothing, and notes."""
        newer = self.base.engine.version
        moved = sorted((e for e in self.effects if self._size(e) >= SMALL), key=lambda e: -self._size(e))
        shown: list[Block] = [Paragraph(self.base.description)] if self.base.description else []
        shown += [self._both(), Heading(2, f"What each difference does in {newer}")]
        if moved:
            shown += [
                Paragraph(
                    f"Each cell is the run of {newer} against the same run with this one thing as in "
                    f"{self.older.engine.version}. Effects need not add up: where two things do the same, "
                    "undoing one alone shows little."
                ),
                self._effects(moved),
            ]
        shown += [Paragraph(line) for line in self._silent(moved)]
        shown += [
            Paragraph(f"Could not be undone: {effect.difference.name}: {effect.undone.error}.")
            for effect in self.effects
            if effect.undone and effect.undone.error is not None
        ]
        settings = [setting for effect in moved if (setting := effect.difference.setting)]
        if settings:
            shown.append(Paragraph("By hand, with a setting below it to undo one of these:"))
            by_hand = f"{self.command} --set engine.version={newer}"
            shown.append(Preformatted("\n".join([by_hand, *(f"  --set {each}" for each in settings)])))
        return [*shown, Heading(2, "Notes"), Bullets(tuple(self._notes()))]

    @property
    def _releases(self) -> tuple[tuple[Scenario, Outcome], tuple[Scenario, Outcome]]:
        return (self.older, self.older_outcome), (self.base, self.newer_outcome)

    def _both(self) -> Table:
        rows = []
        for metric in _shown([self.older_outcome, self.newer_outcome]):
            was, now = _number(self.older_outcome, metric), _number(self.newer_outcome, metric)
            rows.append((metric.name, _value(was, metric), _value(now, metric), _change(was, now, metric)))
        return _table(("prediction", self.older.engine.version, self.base.engine.version, "change"), rows)

    def _effects(self, moved: Sequence[Effect]) -> Table:
        undone = [effect.undone for effect in moved if effect.undone]
        metrics = [
            metric
            for metric in _shown([self.newer_outcome])
            if any(_number(each, metric) != _number(self.newer_outcome, metric) for each in undone)
        ]

        def changes(since: Outcome) -> list[str]:
            pairs = [(_number(since, metric), _number(self.newer_outcome, metric)) for metric in metrics]
            return [_change(*pair, metric) for pair, metric in zip(pairs, metrics, strict=True)]

        rows = [(_name(each.difference), *changes(each.undone)) for each in moved if each.undone]
        rows.append(("all together", *changes(self.older_outcome)))
        return _table(("", *(metric.short for metric in metrics)), rows)

    def _silent(self, moved: Sequence[Effect]) -> list[str]:
        """What moved nothing, in one line each."""
        rest = [effect for effect in self.effects if effect not in moved and not effect.has_failed]
        little = [e for e in rest if e.undone and self._size(e) > 0.0]
        nothing = [e for e in rest if e.undone and self._size(e) == 0.0]
        never = [e for e in rest if e.undone is None]
        lines = [
            f"{words}: {', '.join(effect.difference.name for effect in effects)}."
            for effects, words in (
                (little, f"Moved nothing by more than {SMALL:.1%}"),
                (nothing, "Moved nothing"),
                (never, "Never asked for in this run"),
            )
            if effects
        ]
        return lines or (["Everything that differs moved something."] if moved else ["Nothing differs."])

    def _notes(self) -> list[str]:
        notes = {f"one run each, seed {self.base.seed}: with another seed all numbers scatter": None}
        for scenario, outcome in self._releases:
            summary, version = outcome.summary or {}, scenario.engine.version
            told, thin = summary["notes"], summary["thin_percentiles"]
            assert isinstance(told, Sequence)
            assert isinstance(thin, Sequence)
            notes |= dict.fromkeys(f"{version}: {note}" for note in told)
            names = [metric.short for metric in METRICS if metric.key in thin]
            if names:
                notes[f"{version}: fewer than 10 samples above {', '.join(names)}"] = None
        return list(notes)

    def _size(self, effect: Effect) -> float:
        """The largest change that a difference makes, as a ratio; a change of a count counts as large."""
        if effect.undone is None or effect.has_failed:
            return 0.0
        sizes = [0.0]
        for metric in METRICS:
            was, now = _number(effect.undone, metric), _number(self.newer_outcome, metric)
            if was == now:
                continue
            if was is None or now is None or metric.kind == "count":
                sizes.append(SMALL)
            elif metric.kind == "share":
                sizes.append(abs(now - was))
            else:
                sizes.append(abs(now - was) / max(abs(was), abs(now)))
        return max(sizes)


def _numbers(outcome: Outcome) -> list[object]:
    summary: Mapping[str, Json] = outcome.summary or {}
    return [outcome.error or "", *(summary.get(metric.key) for metric in METRICS)]


def _name(difference: Difference) -> str:
    """A rule by its name, which is on or off; all else with what it was and is."""
    if difference.kind == "rule":
        return difference.name
    return f"{difference.name}, {difference.older} → {difference.newer}"


def _shown(outcomes: Sequence[Outcome]) -> list[SummaryMetric]:
    return [m for m in METRICS if any(_number(each, m) is not None for each in outcomes)]


def _number(outcome: Outcome, metric: SummaryMetric) -> float | None:
    value = (outcome.summary or {}).get(metric.key)
    return float(value) if isinstance(value, (int, float)) else None


def _value(value: float | None, metric: SummaryMetric) -> str:
    if value is None:
        return "–"
    if metric.kind == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if metric.kind == "count" or abs(value) >= 100 else f"{value:.2f}"


def _change(was: float | None, now: float | None, metric: SummaryMetric) -> str:
    if was is None or now is None:
        return "–"
    if was == now:
        return "="
    if metric.kind == "count":
        return f"{now - was:+,.0f}"
    if metric.kind == "share":
        return f"{100 * (now - was):+.1f} pp"
    return f"{now / was - 1:+.1%}" if was else "–"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """The first column is set to the left, the others to the right."""
    return Table(header, tuple(rows), (False, *(True for _ in header[1:])))


def compare_releases(
    scenario: Scenario | str | Path,
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
        load_scenario(scenario, [*overrides, f"engine.version='{version}'"]) for version in (older, newer)
    )
    found = differences(before, after, allow_plugins=options.allow_plugins)
    with_all, asked = _watched_run(after, options)
    tried = [each for each in found if _may_matter(each, asked)]
    points = [Point(before), *(_without(each, after, options) for each in tried)]
    with_none, *undone = run_points(points, options=options)
    if not with_none.summary:
        raise input_error(str(with_none.error))
    by_name = {each.name: outcome for each, outcome in zip(tried, undone, strict=True)}
    name = scenario.name if isinstance(scenario, Scenario) else str(scenario)
    words = ["dryserve", "run", name, *(part for each in overrides for part in ("--set", each))]
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
        release = replace(of, rules=noting(of.rules, asked), defaults=noting(of.defaults, asked))
        return replace(setup, replica=replace(setup.replica, release=release))

    result = simulate(scenario, keep_steps=False, allow_plugins=options.allow_plugins, change=watched)
    error = None if result.stuck is None else f"the run was ended by a {result.stuck}"
    return Outcome(Point(scenario), "", result.summary, error), asked
