"""One run: a scenario in, a `RunResult` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scheduler import EngineCore
from sim.cluster.kv_events import KVEventsFile
from sim.cluster.recorded import RunRecording
from sim.cluster.recorder import Recorder, Status, TokenTimes
from sim.cluster.router import make_router
from sim.cluster.watched import Watch
from sim.cluster.world import Progress, World
from sim.errors import InputError, input_error
from sim.installed.failures import SchedulerFailedError
from sim.random_streams import streams
from sim.results.accounts import (
    feature_summary,
    preemption_notes,
    preemption_summary,
    preemption_table,
    turns_given_up,
)
from sim.results.error_bands import band_summary, fell_behind
from sim.results.metrics import RequestTimes, request_times
from sim.results.run_tables import Columns, frame, preemption_columns, request_columns, step_columns
from sim.results.summary import EngineTotals, group_summary, summarize
from sim.scenario import Scenario, SloTarget, load_scenario
from sim.scenario.resolve import mirrored
from sim.setup import EngineSetup, engine_setup, priority_notes
from sim.values import Json
from sim.version import dryserve_version
from sim.workload import Limits, Workload, build_workload

if TYPE_CHECKING:
    import pandas as pd

    from sim.results.plots import RunPlots

EngineChange = Callable[[Scenario, EngineSetup], EngineSetup]
"""Makes another engine of a scenario's own, such as one whose steps take other times."""


def simulate(
    scenario: Scenario | str | Path,
    overrides: Sequence[str] = (),
    *,
    check: bool = False,
    progress: Progress | None = None,
    keep_steps: bool = True,
    plain: bool = False,
    allow_plugins: bool = False,
    workload: Workload | None = None,
    change: EngineChange | None = None,
    record: Path | str | None = None,
    kv_events: Path | str | None = None,
) -> RunResult:
    """Run a scenario, with `path=value` overrides, from start to end or to its horizon.

    >>> result = simulate("kv-starved", ["workload.num_requests=50"])
    >>> result.summary["completed"], len(result.requests)
    (50, 50)
    >>> result.summary["num_gpu_blocks"] == result.setup.num_gpu_blocks
    True
    >>> ax = result.plot.latency_cdf(metric="e2e")

    `check` verifies the laws while it runs (slow) and raises `InvariantError` where one is broken.
    `progress(time_s, ended, requests)` is called now and then. Without `keep_steps` the table of steps stays
    empty and memory small; the summary is the same. `plain` walks over every request in every step instead of
    taking steady decode together (see `scheduler.cohort` and `sim.cluster.planned`): slower, same bits.
    `allow_plugins` lets a scenario name policy classes of the user's own, which are then imported. `workload`
    are requests in place of those that the scenario describes, and `change` makes the engine that runs out of
    the scenario's own. `record` is a file (`.jsonl.gz`) to which the steps are recorded as those of a real
    engine would be, one file a replica; the results are the same. `kv_events` is a file for what enters and
    leaves the prefix caches, as JSON lines (see `sim.cluster.kv_events`); the results are the same. Raises
    `InputError` for a scenario that cannot be run.
    """
    scenario = load_scenario(scenario, overrides)
    setup = engine_setup(scenario, allow_plugins=allow_plugins)
    if change is not None:
        setup = change(scenario, setup)
    if workload is None:
        limits = Limits(setup.replica.scheduler.max_model_len)
        workload = build_workload(scenario, streams(scenario.seed), limits)
    if kv_events is not None and setup.replica.installed is not None:
        message = "is told by dryserve's own scheduler; an installed one publishes its events itself"
        raise input_error(message, where=str(kv_events))
    recording = None if record is None else _recording(Path(record), setup, scenario)
    if record is not None and kv_events is not None and Path(record).absolute() == Path(kv_events).absolute():
        raise input_error("is named for the recording and for the KV events", where=str(kv_events))
    events_file = None if kv_events is None else KVEventsFile(Path(kv_events))
    try:
        return simulate_workload(
            scenario,
            setup,
            workload,
            check=check,
            progress=progress,
            keep_steps=keep_steps,
            plain=plain,
            record=recording,
            kv_events=events_file,
        )
    finally:
        if events_file is not None:
            events_file.close()


def simulate_workload(
    scenario: Scenario,
    setup: EngineSetup,
    workload: Workload,
    *,
    check: bool = False,
    progress: Progress | None = None,
    keep_steps: bool = True,
    plain: bool = False,
    watch: Watch | None = None,
    record: RunRecording | None = None,
    kv_events: KVEventsFile | None = None,
) -> RunResult:
    """Run these requests, in place of those that the scenario describes, on the scenario's cluster.

    `watch` takes note of what every request waits for, `kv_events` of what enters and leaves the prefix
    caches; the results are the same. Raises `InputError` for an
    installed scheduler, which nobody can watch.
    """
    if watch is not None and setup.replica.installed is not None:
        message = "an installed scheduler cannot be watched: ask the mirror (engine.scheduler: mirror)"
        raise InputError([scenario.fault("engine.scheduler", message)])
    world = World(
        workload,
        setup.replica,
        make_router(scenario.cluster.router.kind, streams(scenario.seed)("routing"), workload.table.session),
        num_replicas=scenario.cluster.replicas,
        keep_steps=keep_steps,
        warmup_s=scenario.warmup_s,
        check=check,
        plain=plain,
        watch=watch,
        record=record,
        kv_events=kv_events,
    )
    try:
        clock_s = world.run(scenario.horizon_s, progress)
    except SchedulerFailedError as error:
        path = "engine.scheduler_cls" if scenario.engine.scheduler_cls else "engine.scheduler"
        fault = scenario.fault(path, f"the installed scheduler failed: {error}")
        raise InputError([fault]) from error
    return RunResult(scenario, setup, workload, world, clock_s)


def _recording(path: Path, setup: EngineSetup, scenario: Scenario) -> RunRecording:
    """What the recordings of a run say of its engine."""
    from sim.recordings.reader import SUFFIX  # late: few runs are recorded

    deployment, engine = setup.deployment, setup.engine
    if not path.name.endswith(SUFFIX):
        raise input_error(f"must end in {SUFFIX}, as recordings do", where=str(path))
    if setup.replica.installed is not None:
        message = "records dryserve's own scheduler; vLLM's is recorded by dryserve.recording"
        raise input_error(message, where=str(path))
    weights = deployment.weight_dtype.name
    settings: dict[str, Json] = {
        "model": scenario.model,
        "gpu": deployment.gpu.name,
        "quantization": None if weights == "bf16" else weights,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "enforce_eager": engine.enforce_eager,
        "tensor_parallel": engine.tensor_parallel_size,
        "pipeline_parallel": engine.pipeline_parallel_size,
    }
    if cannot := _not_recorded(setup, scenario):
        settings["not_replayed"] = cannot
    return RunRecording(path, engine.version, settings)


def _not_recorded(setup: EngineSetup, scenario: Scenario) -> list[Json]:
    """What decides in these engines and is not in their recordings."""
    engine, told = setup.engine, list[Json]()
    if scenario.cluster.external_cache is not None:
        told.append("cluster.external_cache: what it answers is not recorded")
    if setup.replica.offload is not None:
        told.append("engine.preemption_mode: offloading is not recorded")
    usual = {"fcfs": ("fcfs_tail", "fcfs"), "priority": ("priority", "priority")}[engine.scheduling_policy]
    for name, kind in zip(("victim_policy", "waiting_order"), usual, strict=True):
        section = getattr(engine, name)
        if section is not None and section.kind != kind:
            told.append(f"engine.{name}: {section.kind} is no policy of vLLM's")
    return told


class RunResult:
    """What came of a run. Tables and summary are made when first asked for.

    `requests` and `steps` have the columns of `requests.csv` and `steps.csv`, `summary` those of
    `summary.json`; `notes` says in words what the reader must know: what was repaired, lowered or left
    unfinished.
    """

    def __init__(
        self, scenario: Scenario, setup: EngineSetup, workload: Workload, world: World, clock_s: float
    ) -> None:
        self.scenario = scenario
        self.setup = setup
        self.workload = workload
        self.clock_s = clock_s
        self._world = world
        self._recorder = world.recorder
        self._rejections = world.rejections
        self.stuck = world.stuck
        """The deadlock or livelock that ended the run, if one did."""
        self._engines = [replica.engine for replica in world.replicas]
        self._tokens = world.recorder.token_times()

    def __repr__(self) -> str:
        return (
            f"<RunResult {self.scenario.name}: {len(self.workload.table):,} requests, {self.clock_s:,.1f} s>"
        )

    @property
    def recording(self) -> tuple[Recorder, TokenTimes]:
        """Everything that was written down, and the times of all tokens: for analyses of a run."""
        return self._recorder, self._tokens

    @property
    def times(self) -> RequestTimes:
        """The times of every request of the workload, by id, exact."""
        return self._times

    @property
    def engines(self) -> Sequence[EngineCore]:
        """The engines as the run has left them, a replica each."""
        return self._engines

    @cached_property
    def _times(self) -> RequestTimes:
        return request_times(
            self._recorder,
            self._tokens,
            np.asarray(self.workload.table.prompt_tokens, dtype=np.int64),
            warmup_s=self.scenario.warmup_s,
            end_s=self.clock_s,
        )

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row for every request that arrived, by id."""
        return frame(self.request_columns())

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for every step of every replica, in the order in which they ended; `end_s` is that end."""
        return frame(self.step_columns())

    @cached_property
    def preemption_times(self) -> pd.DataFrame:
        """One row for each preemption, in order of time: when it came, when it was over. See
        `sim.results.run_tables.preemption_columns`.
        """
        return frame(self.preemption_columns())

    def request_columns(self) -> Columns:
        """What `requests` has, as arrays by name."""
        return request_columns(self._recorder, self.workload.table, self._times, self._world.aborted_s)

    def step_columns(self) -> Columns:
        """What `steps` has, as arrays by name."""
        return step_columns(self._recorder)

    def preemption_columns(self) -> Columns:
        """What `preemption_times` has, as arrays by name."""
        stalls = [replica.stalls for replica in self._world.replicas]
        return preemption_columns(stalls, self._tokens, [log.end_s() for log in self._recorder.steps])

    @cached_property
    def summary(self) -> dict[str, Json]:
        """The numbers of `summary.json`."""
        scenario, setup, workload = self.scenario, self.setup, self.workload
        stats = [engine.prefix_cache_stats for engine in self._engines]
        gpus = scenario.cluster.replicas * scenario.engine.num_gpus
        numbers = summarize(
            self._recorder,
            self._tokens,
            self._times,
            warmup_s=scenario.warmup_s,
            targets=self.targets,
            engines=EngineTotals(
                setup.num_gpu_blocks,
                sum(s.queries for s in stats),
                sum(s.hits for s in stats),
                sum(e.num_preemptions for e in self._engines),
            ),
            rejections=self._rejections,
            num_gpus=gpus,
        )
        provenance: dict[str, Json] = {
            "mirrors": mirrored(setup.engine),
            "dryserve_version": dryserve_version(),
            "calibration_id": setup.calibration_id,
            "error_band": band_summary(scenario, overloaded=self._fell_behind()),
            "seed": scenario.seed,
            "loop": workload.loop,
            "warmup_s": scenario.warmup_s,
            "horizon_s": scenario.horizon_s,
            "gpu": setup.deployment.gpu.name,
            "num_gpus": gpus,
            "num_replicas": scenario.cluster.replicas,
            "notes": self.notes,
        }
        preemptions = preemption_summary(self._recorder, self._engines, self.stuck)
        features = feature_summary(self._world, workload.table)
        return self._offered() | numbers | self._by_group(numbers) | preemptions | features | provenance

    def _fell_behind(self) -> bool:
        """Whether requests came faster than they were served."""
        times = self._times
        sent = (times.status != Status.NOT_SENT) & (times.status != Status.REJECTED)
        return fell_behind(times.arrival_s[sent], times.last_token_s[sent], self.workload.max_concurrency)

    def _by_group(self, numbers: Mapping[str, Json]) -> dict[str, Json]:
        duration_s = numbers["duration"]
        assert isinstance(duration_s, float)
        log, aborted_s = self._recorder.requests, self._world.aborted_s
        return group_summary(
            self.scenario, self.workload.table, self._times, log, aborted_s, duration_s=duration_s
        )

    @cached_property
    def preemptions(self) -> pd.DataFrame:
        """One row for each request ever preempted: what it lost, found again, how long it stalled."""
        return preemption_table(self._recorder, self._engines)

    @property
    def plot(self) -> RunPlots:
        """The run's figures, drawn when asked for: `result.plot.latency_cdf()` and others."""
        from sim.results.plots import RunPlots

        return RunPlots(self)

    def _repr_html_(self) -> str:
        from sim.results.plots import summary_html

        return summary_html(self.summary)

    @property
    def resolved(self) -> Scenario:
        """The scenario with the engine's defaults filled in."""
        return self.scenario.resolved

    @property
    def targets(self) -> dict[str, SloTarget]:
        """The scenario's SLO targets by their keys."""
        slo = self.scenario.slo
        return {} if slo is None else dict(zip(slo.root, slo.targets, strict=True))

    @cached_property
    def notes(self) -> list[str]:
        """What to know before trusting the numbers."""
        notes = [*self.setup.notes, *self.workload.notes, *preemption_notes(self._engines, self.stuck)]
        notes += priority_notes(self.setup.engine, has_priorities=bool(self.workload.table.priority.any()))
        statuses = self._recorder.requests.status
        flying, unsent = statuses.count(Status.IN_FLIGHT), statuses.count(Status.NOT_SENT)
        given_up = int(turns_given_up(np.array(statuses), self.workload.table.turn_after).sum())
        if given_up:
            notes.append(f"{given_up} turns were not sent: one before them was refused or aborted")
            unsent -= given_up
        if flying or unsent:
            end = "the end at" if self.stuck else "the horizon of"
            notes.append(f"{end} {self.clock_s:g} s left {flying} requests in flight and {unsent} not sent")
        if self.scenario.warmup_s and not self._times.measured.any():
            warm_up = f"the warm-up of {self.scenario.warmup_s:g} s"
            notes.append(f"{warm_up} left no request to report on: none arrived after it")
        return notes

    def _offered(self) -> dict[str, Json]:
        """The head of a `vllm bench serve` result: what load was offered to what."""
        section, table = self.scenario.workload, self.workload.table
        rate: float | str = getattr(section, "rate_per_s", None) or "inf"
        if section.kind == "trace" and len(table) and table.arrival_s[-1] > 0:
            rate = float(len(table) / table.arrival_s[-1])
        return {
            "endpoint_type": "dryserve",
            "backend": "dryserve",
            "label": self.scenario.name,
            "model_id": self.setup.deployment.model.name,
            "tokenizer_id": self.setup.deployment.model.name,
            "num_prompts": len(table),
            "request_rate": rate,
            "burstiness": {"poisson": 1.0, "gamma": getattr(section, "burstiness", None)}.get(section.kind),
            "max_concurrency": self.workload.max_concurrency,
        }
