"""What was promised, and whether runs keep it: shares of requests, judged by the ends of their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan

from sim.jobs.points import Outcome
from sim.questions.sweep.measures import attainment_column, interval_of, measures
from sim.report.cells import duration
from sim.scenario import Scenario, SloTarget
from sim.statistics.intervals import Interval, replication_interval

JOINT = "slo_attainment"
DEFAULT_ATTAINMENT = 0.99
MET, MISSED, CLOSE, BROKEN = "met", "missed", "too close to say", "no result"
NO_DATA = "no data"
NOTHING_JUDGED = "a run has no request to judge: its warm-up or its horizon left none"


@dataclass(frozen=True, slots=True)
class Promise:
    """The share of requests wanted in each column: of each target, or of all at once (`JOINT`)."""

    targets: Mapping[str, SloTarget]
    shares: Mapping[str, float]

    def words(self) -> str:
        """The promise in words."""
        limits = {key: f"{t.metric.upper()} <= {duration(t.limit_s)}" for key, t in self.targets.items()}
        if JOINT in self.shares:
            all_of = " and ".join(limits.values()) or "the SLO of its class"
            return f"{self.shares[JOINT]:.4g} of requests keep {all_of}"
        each = (f"{limits[key]} for {t.percentile:g} %" for key, t in self.targets.items() if t.percentile)
        return ", ".join(each)


def make_promise(scenario: Scenario, attainment: float | None) -> Promise | None:
    """The scenario's own SLO: each target for its percentile, or all at once for the share `attainment`.

    Classes with SLOs of their own, and targets without a percentile, are judged all at once. None if nothing
    is promised.
    """
    slo = scenario.slo
    targets = {} if slo is None else dict(zip(slo.root, slo.targets, strict=True))
    own = any(each.slo is not None for each in (scenario.workload.classes or {}).values())
    if not targets and not own:
        return None
    together = attainment is not None or own or any(t.percentile is None for t in targets.values())
    if together:
        return Promise(targets, {JOINT: DEFAULT_ATTAINMENT if attainment is None else attainment})
    return Promise(
        targets, {attainment_column(key): t.percentile / 100.0 for key, t in targets.items() if t.percentile}
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Runs under several seeds: the share that kept everything, that of each target, and the verdict.

    `failing` names the columns that miss their share, `numbers` are means of the runs' numbers by column, and
    `error` says what went wrong with a run.
    """

    verdict: str
    attainment: Interval
    shares: Mapping[str, Interval]
    failing: tuple[str, ...]
    numbers: Mapping[str, float]
    summaries: Sequence[Mapping[str, object]]
    error: str | None = None

    @property
    def is_met(self) -> bool:
        """Whether the lower ends of all intervals reach what was promised."""
        return self.verdict == MET

    @property
    def seeds(self) -> int:
        """How many runs there were."""
        return len(self.summaries)


def judge(promise: Promise, outcomes: Sequence[Outcome]) -> Judgement:
    """Judge runs of one configuration, one alone by its estimate. A run that got stuck misses all."""
    error = next((outcome.error for outcome in outcomes if outcome.error), None)
    summaries = [outcome.summary for outcome in outcomes if outcome.summary is not None]
    nothing = Interval(float("nan"), float("nan"), float("nan"), 0)
    rows = [measures(summary) for summary in summaries]
    if error is not None or not rows:
        stuck = summaries and len(summaries) == len(outcomes)
        verdict = MISSED if stuck else BROKEN
        return Judgement(verdict, nothing, {}, tuple(promise.shares), {}, summaries, error)
    columns = dict.fromkeys((JOINT, *(attainment_column(key) for key in promise.targets), *promise.shares))
    found = {column: _share(column, rows) for column in columns if column in rows[0]}
    numbers = {name: _mean([row[name] for row in rows]) for name in rows[0]}
    if any(isnan(found[column].estimate) for column in promise.shares):
        return Judgement(NO_DATA, nothing, {}, tuple(promise.shares), numbers, summaries, NOTHING_JUDGED)
    verdicts = {column: _verdict(found[column], wanted) for column, wanted in promise.shares.items()}
    worst = next(each for each in (MISSED, CLOSE, MET) if each in verdicts.values())
    failing = tuple(column for column, verdict in verdicts.items() if verdict != MET)
    return Judgement(worst, found[JOINT], found, failing, numbers, summaries)


def _share(column: str, rows: Sequence[Mapping[str, float]]) -> Interval:
    if len(rows) == 1:
        return replication_interval([rows[0][column]])
    return interval_of(column, rows, None)


def _verdict(found: Interval, wanted: float) -> str:
    if not isfinite(found.low):
        return MET if found.estimate >= wanted else MISSED
    if found.low >= wanted:
        return MET
    return MISSED if found.high < wanted else CLOSE


def _mean(values: Sequence[float]) -> float:
    """NaN unless all values are finite."""
    return replication_interval(values).estimate
