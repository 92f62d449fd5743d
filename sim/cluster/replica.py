"""One engine replica: the step loop. schedule → the GPU's time passes → record → update, as in the textbook.

Up to `depth` batches are in flight: 1 is the synchronous engine; with 2 the next step is scheduled while the
GPU works on this one (asynchronous scheduling); a pipeline takes as many as it has stages, or one more.
The host needs `host_s` for a batch before the GPU can begin it: with depth 1 that adds to every step, with
more it passes while the GPU is busy with the batch before, and shows only where it is the longer of the two.

In a pipeline ahead of the GPU a decode begins when the token before it exists. Where the decodes of a request
are spaced (`EngineCore.decode_spacing`), a call that finds nobody due puts an empty batch among those in
flight.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from math import nan

from simpy import Event

from cost_models.step_cost import BOUNDS
from scheduler import EngineCore, FinishReason, KVReport, Request, SchedulerOutput
from scheduler.output import RequestOutput
from sim.cluster.clock import Clock, LateEvent, ProgressGuard, late_alarm, late_timeout
from sim.cluster.connectors import TimedConnector
from sim.cluster.grammars import GrammarCompiler, GrammarSpec
from sim.cluster.model_runner import ModelRunner, time_speculative_step
from sim.cluster.recorder import Recorder, StepCounts
from sim.cluster.replica_spec import ReplicaSpec
from sim.cluster.servers import GpuQueue
from sim.cluster.step_shape import time_step

_NO_COUNTS: StepCounts = (0, 0, 0, 0, 0, 0, 0, 0, 0)


class Batch:
    """A scheduled step on its way through the GPU; `row` has its columns from `decode_tokens` on."""

    __slots__ = ("end_s", "output", "row", "scheduled_s", "start_s")

    def __init__(
        self,
        output: SchedulerOutput,
        scheduled_s: float,
        start_s: float,
        end_s: float,
        row: StepCounts,
    ) -> None:
        self.output = output
        self.scheduled_s = scheduled_s
        self.start_s = start_s
        self.end_s = end_s
        self.row = row

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled in it: it takes a place among those in flight, and no time."""
        return self.row is _NO_COUNTS


class Replica:
    """One engine with its GPUs. `run` is its SimPy process; the router calls `submit`.

    engine: made as `spec` says. on_end: called with every request that finishes, and why. check: called after
    every step, if given. connector: the engine's, if it has one. grammars: how those that these requests need
    are compiled.
    """

    def __init__(
        self,
        env: Clock,
        index: int,
        engine: EngineCore,
        spec: ReplicaSpec,
        model: ModelRunner,
        recorder: Recorder,
        guard: ProgressGuard,
        on_end: Callable[[Request, FinishReason], None],
        *,
        connector: TimedConnector | None = None,
        grammars: GrammarSpec | None = None,
        check: Callable[[Replica, Batch], None] | None = None,
    ) -> None:
        self.index = index
        self._engine = engine
        self.requests: dict[int, Request] = {}
        self._env = env
        self._timer = spec.timer
        self._model = model
        self._sampler = model.sample
        self._log = recorder.requests
        self._steps = recorder.steps[index]
        self._runs = recorder.runs[index]
        self._guard = guard
        self._on_end = on_end
        self._depth = spec.depth
        self._front_end_s = spec.front_end_s
        self._front_end_stream_s = spec.front_end_stream_s
        self._last_entry_s = 0.0
        self._windows = spec.windows
        self._connector = connector
        self._drafter = spec.speculation.drafter if spec.speculation else None
        self.compiler = GrammarCompiler(env, grammars, self._grammar_ready) if grammars else None
        self._check = check
        self._gpu = GpuQueue()
        self._ready_s = 0.0
        """When the inputs of the latest batch are there, apart from the host's work, s."""
        self._decodes_wait = spec.is_pipeline_ahead
        self._spaces_decodes = engine.decode_spacing > 1
        self._last_ends_s: deque[float] = deque([0.0], maxlen=engine.decode_spacing)
        """When the latest batch ends, as of each of the latest calls."""
        self._in_flight: deque[Batch] = deque()
        self._host_free_s = 0.0
        self._wake_up: LateEvent | None = None
        self._entering: list[tuple[float, Request]] = []
        """Who enters the engine before the process wakes, and when, if that needs no event (`planned`)."""
        self._wakes_s = 0.0
        """When the process wakes, whatever comes; 0 or a time gone by if it may wake sooner."""
        self._preempted_s: dict[int, float] = {}
        self._stalls: list[tuple[int, float, float]] = []
        self._unrecorded_preemptions = 0

    @property
    def engine(self) -> EngineCore:
        """The engine as of now, with every request's own counts up to date."""
        self.settle()
        self._engine.settle()
        return self._engine

    @property
    def num_outstanding(self) -> int:
        """Requests sent here that have not ended."""
        return len(self.requests)

    def drafts_in_flight(self) -> Mapping[int, int]:
        """How many drafts the batches in flight verify, by request id."""
        drafts: Counter[int] = Counter()
        for batch in self._in_flight:
            drafts.update(batch.output.scheduled_spec_decode_tokens)
        return drafts

    def submit(self, request: Request) -> None:
        """Take a request on arrival; it enters the engine once the front end is through with it."""
        enters_s = self._entry_s()
        self._register(request)
        self._enter_at(request, enters_s)

    def _enter_at(self, request: Request, enters_s: float) -> None:
        """Let a request enter the engine at that time, or now if it has passed."""
        if enters_s > self._env.now:
            late_alarm(self._env, enters_s, request).callbacks.append(self._on_entry)
        else:
            self._enter(request)

    def _entry_s(self) -> float:
        """When the front end is through with a request that comes now: it also serves the streams of all
        requests in flight, and takes one request after the other.
        """
        delay_s = self._front_end_s + self._front_end_stream_s * len(self.requests)
        enters_s = self._env.now + delay_s
        if enters_s > self._last_entry_s:
            self._last_entry_s = enters_s
        return self._last_entry_s

    def abort(self, request: Request) -> None:
        """The client has hung up: the request ends now, whatever the engine is doing with it."""
        self.settle()
        self._engine.abort_requests([request.request_id])
        self._runs.close(request.request_id, self._steps.num_steps)
        self._end(request, FinishReason.ABORT)
        self._wake()

    def pause_at(self, at_s: float, level: int) -> None:
        """Pause the engine at a moment, or let it go on: see `EngineCore.pause`. Call before time runs."""
        late_timeout(self._env, at_s, level).callbacks.append(self._pause)

    def _pause(self, event: Event) -> None:
        assert isinstance(event.value, int)
        self.settle()
        self._engine.pause(event.value)
        self._wake()

    def _register(self, request: Request) -> None:
        """From now on the replica answers for the request."""
        self.requests[request.request_id] = request
        self._log.replica[request.request_id] = self.index

    def _on_entry(self, event: Event) -> None:
        request = event.value
        assert isinstance(request, Request)
        if request.request_id in self.requests:  # else it was aborted on the way
            self._enter(request)

    def _enter(self, request: Request) -> None:
        """A request enters the engine now."""
        self._engine.add_request(request)
        if request.needs_grammar:
            assert self.compiler is not None
            self.compiler.ask(request.request_id)
        self._wake()

    def _grammar_ready(self, request_id: int) -> None:
        if request_id in self.requests:
            self.settle()
            self._engine.grammar_ready(request_id)
            self._wake()

    def _wake(self) -> None:
        if self._wake_up is not None:
            self._wake_up.succeed()
            self._wake_up = None

    def run(self) -> Generator[Event, object, None]:
        """The SimPy process: step for ever, asleep while there is nothing to do."""
        env, engine, in_flight = self._env, self._engine, self._in_flight
        while True:
            plan_ends = self._plan_ahead()
            if plan_ends is not None:
                yield plan_ends
                self._end_plan()
                continue
            scheduled = len(in_flight) < self._depth and engine.has_work() and self._schedule(env.now)
            if scheduled and len(in_flight) < self._depth:
                now = env.now
                delay_s = self._until_host_is_free_s(now)
                if not env.skip_to(now + delay_s):
                    self._wakes_s = now + delay_s
                    yield env.timeout(delay_s)
                    if self._entering:
                        self._enter_all()
            elif in_flight:
                now = env.now
                delay_s = self._until_update_s(now)
                if not env.skip_to(now + delay_s):
                    self._wakes_s = now + delay_s
                    yield env.timeout(delay_s)
                    if self._entering:
                        self._enter_all()
                self._update(in_flight.popleft())
            elif self._waits():
                yield self._idle()
                self._wake_up = None

    def _plan_ahead(self) -> Event | None:
        """Plan many steps at once, if that is possible: the event at which they have been taken."""
        return None

    def _end_plan(self) -> None:
        """That event has come."""

    def _enter_all(self) -> None:
        """Let those enter whose time has come while the process slept: nobody has looked since."""
        entering, self._entering = self._entering, []
        for _, request in entering:
            self._enter(request)

    def _until_host_is_free_s(self, now: float) -> float:
        until_free_s = self._host_free_s - now
        return until_free_s if until_free_s > 0.0 else 0.0

    def _until_update_s(self, now: float) -> float:
        """How long until the oldest batch in flight has ended and the host can look at it."""
        until_end_s = self._in_flight[0].end_s - now
        until_free_s = self._until_host_is_free_s(now)
        return until_end_s if until_end_s > until_free_s else until_free_s

    def _waits(self) -> bool:
        """With nothing in flight and nothing to schedule: whether the next step takes something from
        outside.
        """
        return not self._engine.has_work() or self._is_loading or self._is_compiling

    @property
    def _is_loading(self) -> bool:
        return self._connector is not None and self._connector.is_loading

    @property
    def _is_compiling(self) -> bool:
        return self.compiler is not None and self.compiler.num_waiting > 0

    def _idle(self) -> Event:
        """Sleep until somebody wakes the replica, or a load ends."""
        self._wake_up = LateEvent(self._env)
        if self._connector is None or not (self._is_loading and self._engine.has_work()):
            return self._wake_up
        return self._wake_up | self._env.timeout(max(self._connector.load_ends_s - self._env.now, 0.0))

    def settle(self) -> None:
        """Bring the engine up to now, for those who look at it or put something into it."""

    def stop(self) -> None:
        """The clock has stopped: what has not happened by now does not happen."""
        self._engine.settle()

    def _report(self) -> KVReport | None:
        """What the connector has to tell the engine now."""
        if self._connector is None:
            return None
        self._connector.now_s = self._env.now
        return self._connector.report()

    def _schedule(self, now: float) -> bool:
        """Form the next batch at time `now` and hand it to the GPU; false if there is nothing in it."""
        engine, connector = self._engine, self._connector
        if connector is not None:
            connector.now_s, connector.gpu_free_s = now, self._gpu.last_end_s
        output = engine.schedule()
        if output.new or output.resumed or output.preempted:
            self._note_moves(output, now)
        if not output.total_num_scheduled_tokens:
            if self._spaces_decodes and self._keep_empty(output, now):
                return True
            report = self._report()
            engine.update(output, self._sampler, report)
            if self._in_flight:
                return False
            if report is not None:
                return self._schedule(now)  # a load has come: now there may be something to do
            if not (self._is_loading or self._is_compiling):
                self._guard.on_empty_schedule(engine, preempted=bool(output.preempted))
            return False
        if self._drafter is None:
            cost, split = time_step(self._timer, output, self._windows)
        else:
            cost, split = time_speculative_step(self._timer, self._drafter, output, self._windows)
        ready_s = 0.0 if connector is None else connector.ready_s
        if self._decodes_wait and split[0]:
            token_s = self._last_ends_s[0] if self._spaces_decodes else self._gpu.last_end_s
            ready_s = max(ready_s, token_s)
        self._ready_s = ready_s
        start_s = max(max(now, self._gpu.entry_s), ready_s)
        self._host_free_s = max(now, self._host_free_s) + cost.host_s
        end_s = self._gpu.run(max(self._host_free_s, ready_s), cost)
        if self._spaces_decodes:
            self._last_ends_s.append(end_s)
        kv = engine.kv_cache
        decode_tokens, prefill_tokens, recompute_tokens = split
        row = (
            decode_tokens,
            prefill_tokens,
            recompute_tokens,
            engine.num_running,
            engine.num_waiting,
            kv.num_used_blocks,
            kv.num_cached_free_blocks,
            self._unrecorded_preemptions,
            BOUNDS.index(cost.bound),
        )
        self._unrecorded_preemptions = 0
        self._in_flight.append(Batch(output, now, start_s, end_s, row))
        return True

    def _keep_empty(self, output: SchedulerOutput, now: float) -> bool:
        """Put an empty batch among those in flight, if there is anything to wait for in them."""
        self._last_ends_s.append(self._gpu.last_end_s)
        if all(batch.is_empty for batch in self._in_flight):
            return False
        self._in_flight.append(Batch(output, now, now, now, _NO_COUNTS))
        return True

    def _note_moves(self, output: SchedulerOutput, now: float) -> None:
        """Record who is scheduled for the first time, who comes back, and who lost its blocks."""
        for request in output.new:
            self._log.first_scheduled_s[request.request_id] = now
        for request in output.resumed:
            self._came_back(request.request_id, now, resumed_s=now)
        for request in output.preempted:
            self._preempted_s[request.request_id] = now
        self._unrecorded_preemptions += len(output.preempted)

    def _came_back(self, request_id: int, now: float, resumed_s: float) -> None:
        preempted_s = self._preempted_s.pop(request_id)
        self._log.stalled_s[request_id] += now - preempted_s
        self._stalls.append((request_id, preempted_s, resumed_s))

    @property
    def stalls(self) -> list[tuple[int, float, float]]:
        """Each preemption: request id, when it lost its blocks, when it came back (s; NaN: never)."""
        return [*self._stalls, *((request, since_s, nan) for request, since_s in self._preempted_s.items())]

    def _update(self, batch: Batch) -> None:
        """The batch has ended: from now on its tokens exist."""
        engine, step = self._engine, self._steps.num_steps
        if batch.is_empty:
            engine.update(batch.output, self._sampler, self._report())
            return
        self._steps.append(batch.start_s, self._env.now, batch.row)
        outputs = engine.update(batch.output, self._sampler, self._report())
        entries, num_unnamed = outputs.entries, outputs.num_unnamed
        served = [entry[0].request_id for entry in entries if entry[1]]
        if not self._runs.on_step(step, served, num_unnamed):
            self._runs.close_others(step, {*served, *engine.unnamed_ids()})
        if self._drafter is not None:
            self._note_drafts(batch.output, entries)
        for request, _, reason in entries:
            if reason is not None:
                self._runs.close(request.request_id, step + 1)
                self._end(request, reason)
        self._guard.on_step(engine, gave_tokens=bool(entries) or num_unnamed > 0)
        if self._check is not None:
            self._check(self, batch)

    def _note_drafts(self, output: SchedulerOutput, entries: Sequence[RequestOutput]) -> None:
        """Record the tokens that came together; a synchronous engine is given the next drafts."""
        for request, count, _ in entries:
            if count > 1:
                self._log.extra_tokens[request.request_id] += count - 1
        config = self._engine.config
        if not config.async_scheduling:
            assert config.speculative is not None
            num_drafts = config.speculative.num_speculative_tokens
            self._engine.propose_drafts(output, [num_drafts if samples else 0 for samples in output.samples])

    def _end(self, request: Request, reason: FinishReason) -> None:
        request_id = request.request_id
        del self.requests[request_id]
        self._model.forget(request_id)
        if request_id in self._preempted_s:
            self._came_back(request_id, self._env.now, resumed_s=nan)
        self._on_end(request, reason)
