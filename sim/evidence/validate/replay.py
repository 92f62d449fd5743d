"""Simulate measured runs: each on the engine its row describes, with the requests its client sent.

Runs become points of `sim.jobs.points.run_points`; results come back in the order of the table. Runs with the
same engine and the same requests (one condition that was measured twice) are simulated once, and looked at as
each one's client would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pandas as pd

from cost_models import (
    Calibration,
    EngineProfile,
    ServingFacts,
    StepCostModel,
    calibration,
    engine_profile,
    serving_facts,
)
from sim.errors import Fault, InputError, input_error
from sim.evidence.validate.mapping import MappedRun, map_run
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.result_files import read_result_file
from sim.evidence.validate.run_table import SETUP_COLUMNS, MeasuredRun, read_runs, with_columns
from sim.evidence.validate.scoring import (
    OBSERVED_COLUMNS,
    MetricError,
    held_out,
    is_saturated,
    observe,
    score,
)
from sim.evidence.validate.sent_requests import CannotRunError
from sim.jobs.options import RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.scenario import Scenario
from sim.setup import EngineSetup

__all__ = ["SHIPPED", "CostVariant", "ReplayedRun", "Selection", "read_measured_runs", "replay_all"]


@dataclass(frozen=True)
class Selection:
    """What to keep of a run table. Patterns are those of a shell (`a100*`); an empty list keeps all.

    `part` is "all", "fitted" or "held-out".
    """

    qualities: Sequence[str] = ("A", "B")
    sources: Sequence[str] = ()
    gpus: Sequence[str] = ()
    generations: Sequence[str] = ()
    run_ids: Sequence[str] = ()
    part: str = "all"

    def keeps(self, run: MeasuredRun) -> bool:
        """Whether the run is asked for. A run that states no quality is kept: it is the user's own."""
        return (
            (not run.quality or not self.qualities or run.quality in self.qualities)
            and _matches(run.source, self.sources)
            and _matches(run.gpu or "", self.gpus)
            and _matches(run.engine_gen or "", self.generations)
            and _matches(run.run_id, self.run_ids)
            and (self.part == "all" or held_out(run.run_id) == (self.part == "held-out"))
        )


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(value, pattern) for pattern in patterns)


def read_measured_runs(
    path: Path, selection: Selection | None = None, columns: Mapping[str, str] | None = None
) -> tuple[list[MeasuredRun], list[str]]:
    """The runs of a run table (.csv) or of a load generator's result (.json), and remarks on the reading.

    `columns` are set-up cells that win over the file's, in every run. InputError for what cannot be read.
    """
    selection, columns = selection or Selection(), columns or {}
    unknown = sorted(set(columns) - SETUP_COLUMNS)
    if unknown:
        raise InputError([Fault("--set", name, "is no set-up column of a run table") for name in unknown])
    remarks: list[str] = []
    if path.suffix in (".json", ".jsonl"):
        found: Sequence[MeasuredRun] = read_result_file(path)
    else:
        table = read_runs(path)
        found = table.runs
        if table.unread_columns:
            remarks.append(f"columns not read: {', '.join(table.unread_columns)}")
    kept = [run for run in found if selection.keeps(run)]
    if len(kept) < len(found):
        dropped = Counter(run.quality or "none" for run in found if not selection.keeps(run))
        listed = ", ".join(f"{count} of quality {quality}" for quality, count in sorted(dropped.items()))
        remarks.append(f"rows left out: {listed}")
    if not kept:
        raise input_error("no row of it is selected", where=str(path))
    return [with_columns(run, columns) for run in kept], remarks


@dataclass(frozen=True)
class CostVariant:
    """What to change of the cost model of any engine; functions of a module, or partials of them, so that
    processes can be handed one.

    greedy: as if every request asked for temperature 0. padding: False runs every token count as a CUDA graph
    of its own size.
    """

    name: str = "full model"
    calibration: Callable[[Calibration], Calibration] | None = None
    facts: Callable[[ServingFacts], ServingFacts] | None = None
    profile: Callable[[EngineProfile], EngineProfile] | None = None
    greedy: bool = False
    padding: bool = True

    def apply(self, setup: EngineSetup, scenario: Scenario) -> EngineSetup:
        """The scenario's engine with the costs of this variant."""
        if self == SHIPPED:
            return setup
        shipped = engine_profile(scenario.engine.version)
        profile = self.profile(shipped) if self.profile else shipped
        replica = replace(
            setup.replica,
            timer=self._timer(setup, profile),
            front_end_s=profile.frontend_s,
            front_end_stream_s=profile.frontend_stream_s,
        )
        return replace(setup, replica=replica)

    def _timer(self, setup: EngineSetup, profile: EngineProfile) -> StepCostModel:
        deployment = setup.deployment
        fitted, facts = calibration(deployment.gpu.name), serving_facts(deployment.gpu)
        if not self.padding:  # without graphs there is no padding; what launching would cost is left out
            profile = replace(profile, eager_layer_s=0.0)
        return StepCostModel(
            replace(
                deployment,
                enforce_eager=deployment.enforce_eager or not self.padding,
                greedy=self.greedy or deployment.greedy,
            ),
            fitted=self.calibration(fitted) if self.calibration else fitted,
            facts=self.facts(facts) if self.facts else facts,
            profile=profile,
        )


#: The model as it is.
SHIPPED = CostVariant()


@dataclass(frozen=True)
class ReplayedRun:
    """What came of a measured run: what its client would have seen, or the reason why it is not simulated.

    `latencies` has the simulated requests in columns arrival_s, ttft_s, tpot_s, e2e_s, and `measured_rows`
    the measured ones, where they were measured one by one.
    """

    run: MeasuredRun
    simulated: Mapping[str, float]
    errors: tuple[MetricError, ...]
    assumptions: tuple[str, ...]
    reason: str | None = None
    latencies: pd.DataFrame | None = None
    measured_rows: RequestRows | None = None


def replay_all(
    runs: Sequence[MeasuredRun],
    *,
    limit_requests: int | None = None,
    variant: CostVariant = SHIPPED,
    options: RunOptions | None = None,
) -> list[ReplayedRun]:
    """Simulate every run, with the cost model of `variant`, and see how far off it is; in order.

    `limit_requests` cuts each run to its first requests, for a quick look; `options` says how and where runs
    are simulated.
    """
    found: list[ReplayedRun | MappedRun] = []
    for run in runs:
        try:
            found.append(map_run(run, limit_requests))
        except CannotRunError as error:
            found.append(ReplayedRun(run, {}, (), (), reason=str(error)))
    points = [_point(each, variant) for each in found if isinstance(each, MappedRun)]
    outcomes = iter(run_points(points, columns=OBSERVED_COLUMNS, options=options))
    return [each if isinstance(each, ReplayedRun) else _replayed(each, next(outcomes)) for each in found]


def _point(mapped: MappedRun, variant: CostVariant) -> Point:
    change = None
    if variant != SHIPPED or mapped.sees_engine_clock:
        change = partial(_engine, variant, mapped.sees_engine_clock)
    return Point(mapped.scenario, {}, mapped.workload, change)


def _engine(
    variant: CostVariant, sees_engine_clock: bool, scenario: Scenario, setup: EngineSetup
) -> EngineSetup:
    """The scenario's engine with the costs of a variant, as the client of the run sees it."""
    setup = variant.apply(setup, scenario)
    if sees_engine_clock:
        setup = replace(setup, replica=replace(setup.replica, front_end_s=0.0, front_end_stream_s=0.0))
    return setup


def _replayed(mapped: MappedRun, outcome: Outcome) -> ReplayedRun:
    sent, run = mapped.sent, mapped.sent.run
    if outcome.error is not None or outcome.summary is None or outcome.samples is None:
        return ReplayedRun(run, {}, (), (), reason=outcome.error)
    simulated, latencies = observe(
        outcome.samples, outcome.summary, client=run.client, warmup_s=mapped.scenario.warmup_s
    )
    assumptions = list(mapped.assumptions)
    if simulated.get("failed"):
        assumptions.append(f"{simulated['failed']:.0f} requests did not finish in the simulation")
    saturated = is_saturated(run, sent.num_measured, sent.offer_s)
    return ReplayedRun(
        run=run,
        simulated=simulated,
        errors=tuple(score(run, simulated, condition=sent.condition, saturated=saturated)),
        assumptions=tuple(assumptions),
        latencies=latencies,
        measured_rows=sent.rows,
    )
