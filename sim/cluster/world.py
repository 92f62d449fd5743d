"""The world: one clock, a load generator, a router, the replicas; and the life of a request between them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from scheduler import EngineCore, FinishReason, Request
from sim.cluster.clients import Clients
from sim.cluster.clock import Clock, ProgressGuard, StuckError
from sim.cluster.connectors import HostOffload, make_connectors
from sim.cluster.kv_events import KVEventsFile
from sim.cluster.laws import LawChecks
from sim.cluster.model_runner import make_model_runner
from sim.cluster.planned import PlannedReplica
from sim.cluster.recorded import RecordedReplica, RunRecording
from sim.cluster.recorder import Recorder, Status
from sim.cluster.replica import Batch, Replica
from sim.cluster.replica_spec import ReplicaSpec, kv_capacity_tokens
from sim.cluster.router import Router
from sim.cluster.watched import Watch, WatchedEngine, WatchedReplica
from sim.workload import RequestTable, Workload

Progress = Callable[[float, int, int], None]
"""Called now and then with the simulated time in s, requests that have ended, and all requests."""

_PROGRESS_EVERY = 256
_CHUNK_ROWS = 4096


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector from looking for cycles: what a run drops holds none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Row:
    """One request of the table."""

    __slots__ = ("class_index", "output_tokens", "priority", "prompt_tokens", "rejected")

    def __init__(
        self, prompt_tokens: int, output_tokens: int, rejected: bool, priority: int, class_index: int
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.rejected = rejected
        self.priority = priority
        self.class_index = class_index


class _Rows:
    """Rows of the table as Python numbers. Requests mostly come in order: a chunk is converted at a time."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._start = 0
        self._chunk: list[_Row] = []

    def at(self, request_id: int) -> _Row:
        """The row of a request."""
        place = request_id - self._start
        if 0 <= place < len(self._chunk):
            return self._chunk[place]
        if place != len(self._chunk):  # a later turn of a session, far from the others
            return self._convert(request_id, 1)[0]
        self._start, self._chunk = request_id, self._convert(request_id, _CHUNK_ROWS)
        return self._chunk[0]

    def _convert(self, start: int, count: int) -> list[_Row]:
        table, end = self._table, start + count
        return [
            _Row(prompt_tokens, output_tokens, rejected, priority, class_index)
            for prompt_tokens, output_tokens, rejected, priority, class_index in zip(
                table.prompt_tokens[start:end].tolist(),
                table.output_tokens[start:end].tolist(),
                table.rejected[start:end].tolist(),
                table.priority[start:end].tolist(),
                table.class_index[start:end].tolist(),
                strict=True,
            )
        ]


class World:
    """A cluster and its traffic. Build it, `run` it once, then read `recorder`, `rejections` and
    `replicas`."""

    def __init__(
        self,
        workload: Workload,
        spec: ReplicaSpec,
        router: Router,
        *,
        num_replicas: int = 1,
        keep_steps: bool = True,
        warmup_s: float = 0.0,
        check: bool = False,
        plain: bool = False,
        watch: Watch | None = None,
        record: RunRecording | None = None,
        kv_events: KVEventsFile | None = None,
    ) -> None:
        self.recorder = Recorder(len(workload.table), num_replicas, keep_steps=keep_steps, warmup_s=warmup_s)
        self.rejections: Counter[str] = Counter()
        self.stuck: StuckError | None = None
        self._env = Clock()
        self._table = workload.table
        self._rows = _Rows(workload.table)
        self._prompts = workload.table.prompts
        self._guesses = workload.table.expected_output_tokens
        self._adapters = workload.table.adapter
        self._grammar = workload.table.grammar
        self._ignore_eos = workload.ignore_eos
        self._config = spec.scheduler
        self._most_tokens = kv_capacity_tokens(
            spec.kv_cache, spec.scheduler.max_num_batched_tokens, spec.scheduler.max_model_len
        )
        self._router = router
        self._num_ended = 0
        self._progress: Progress | None = None
        self._laws = (
            LawChecks(self.recorder, num_replicas, looks_inside=spec.installed is None) if check else None
        )
        self._plain = plain
        self._watch = watch
        self._record = record
        self._kv_events = kv_events
        self.clock_s = 0.0
        """When the run ended, s."""
        self.aborted_s: dict[int, float] = {}
        """When each aborted request ended, s."""
        self._last_end_s = 0.0
        self._pauses = bool(spec.pause_events)
        self.model = make_model_runner(spec.speculation, ignore_eos=workload.ignore_eos)
        self._clients = Clients(self._env, workload, self._send, self._hang_up)
        cache = spec.external_cache(workload.table) if spec.external_cache else None
        self.connectors = make_connectors(spec.offload, cache, spec.kv_cache.block_size, num_replicas)
        self._grammars = spec.grammars(workload.table) if spec.grammars else None
        self._num_replicas = num_replicas
        self.replicas = [self._replica(index, spec) for index in range(num_replicas)]
        for replica in self.replicas:
            if isinstance(replica, PlannedReplica):
                replica.is_alone = num_replicas == 1
            for at_s, level in spec.pause_events:
                replica.pause_at(at_s, level)

    def _replica(self, index: int, spec: ReplicaSpec) -> Replica:
        connector = self.connectors[index]
        forecast = None if self._plain or spec.windows or connector else self.model.steady_tokens
        looked_at = self._record is not None or self._kv_events is not None
        if spec.speculation is not None or spec.installed is not None or looked_at:
            forecast = None
        installed = spec.installed.make(connector) if spec.installed is not None else None
        is_watched = self._watch is not None or self._record is not None
        engine = installed or (WatchedEngine if is_watched else EngineCore)(
            spec.scheduler,
            spec.kv_cache,
            victim_policy=spec.victim_policy() if spec.victim_policy else None,
            waiting_order=spec.waiting_order() if spec.waiting_order else None,
            preemption_mode=connector if isinstance(connector, HostOffload) else None,
            connector=connector,
            release=spec.release,
            forecast=forecast,
            most_in_flight=spec.depth,
            names_everybody=self._laws is not None,
        )
        if self._kv_events is not None:
            log = self.recorder.steps[index]
            observer = self._kv_events.observer(index, lambda: self._env.now, lambda: log.num_steps - 1)
            engine.observe_kv_events(observer)
        kind: type[Replica] = PlannedReplica
        if self._record is not None:
            kind = RecordedReplica
        elif self._watch is not None:
            kind = WatchedReplica
        elif forecast is None or self._laws is not None:
            kind = Replica
        replica = kind(
            self._env,
            index,
            engine,
            spec,
            self.model,
            self.recorder,
            (spec.installed.guard if spec.installed is not None else ProgressGuard)(spec.scheduler, index),
            self._on_end,
            connector=connector,
            grammars=self._grammars,
            check=None if self._laws is None else self._check_step,
        )
        if isinstance(replica, RecordedReplica):
            assert self._record is not None
            writer = self._record.writer(index, self._num_replicas, spec, engine)
            replica.keep(writer, caches=spec.kv_cache.enable_caching)
        elif self._watch is not None:
            assert isinstance(replica, WatchedReplica)
            replica.keep(self._watch)
        return replica

    def run(self, horizon_s: float | None = None, progress: Progress | None = None) -> float:
        """Run until every request has ended, or to the horizon; return the time on the clock, s.

        A replica that will never get any further ends the run too: then `stuck` says why.
        """
        self._progress = progress
        for process in (*self._clients.processes(), *(replica.run() for replica in self.replicas)):
            self._env.process(process)
        try:
            with _no_collections():
                self._env.run(until=horizon_s)
        except StuckError as error:
            self.stuck = error
        for replica in self.replicas:
            replica.stop()
        self.recorder.close()
        for replica in self.replicas:
            for request in replica.requests.values():
                self._log_counts(request)
        if self._laws is not None:
            self._laws.at_end(self.rejections.total(), self._clients.num_sent, self.replicas)
        self.clock_s = self._end_s(horizon_s)
        return self.clock_s

    def _end_s(self, horizon_s: float | None) -> float:
        """When the run ended. Pauses to come, and the patience of clients who are served, do not count."""
        timers = self._pauses or self._clients.have_patience
        if timers and horizon_s is None and not any(replica.num_outstanding for replica in self.replicas):
            ends_s = [log.end_s()[-1] for log in self.recorder.steps if log.num_steps]
            return float(max([self._last_end_s, *ends_s]))
        return float(self._env.now)

    def _send(self, request_id: int, due_s: float) -> None:
        """A request leaves the client and arrives at the cluster."""
        log, now = self.recorder.requests, self._env.now
        log.arrival_s[request_id] = now
        log.client_queue_s[request_id] = now - due_s
        row = self._rows.at(request_id)
        reason = self._refusal(row)
        if reason is not None:
            self.rejections[reason] += 1
            self._close(request_id, Status.REJECTED)
            return
        log.status[request_id] = Status.IN_FLIGHT
        request = self._request(request_id, row, now)
        answer_start = self._prompts.output_start(request_id, row.prompt_tokens)
        self.model.expect(request_id, row.output_tokens, answer_start)
        self.replicas[self._router.choose(request, self.replicas)].submit(request)
        self._clients.await_answer(request)

    def _hang_up(self, request: Request) -> None:
        """A client waits no longer."""
        log = self.recorder.requests
        if log.status[request.request_id] == Status.IN_FLIGHT:
            self.replicas[log.replica[request.request_id]].abort(request)

    def _refusal(self, row: _Row) -> str | None:
        """Why a server would refuse the request at once, or None."""
        if row.rejected:
            return f"longer than max_model_len ({self._config.max_model_len} tokens)"
        if row.prompt_tokens + 1 > self._most_tokens:
            return f"prompt and one token exceed the whole KV cache ({self._most_tokens} tokens)"
        return None

    def _request(self, request_id: int, row: _Row, now: float) -> Request:
        guesses, adapters, grammar = self._guesses, self._adapters, self._grammar
        room = self._most_tokens - row.prompt_tokens
        return Request(
            request_id,
            self._prompts.ranges(request_id, row.prompt_tokens),
            min(row.output_tokens, room) if self._ignore_eos else room,
            arrival_time=now,
            priority=row.priority,
            client_index=row.class_index,
            expected_output_tokens=None if guesses is None else float(guesses[request_id]),
            ignore_eos=self._ignore_eos,
            lora_name=None
            if adapters is None
            else _name(self._table.adapter_names, int(adapters[request_id])),
            needs_grammar=grammar is not None and bool(grammar[request_id] >= 0),
        )

    def _on_end(self, request: Request, reason: FinishReason) -> None:
        self._log_counts(request)
        ended_well = reason in (FinishReason.STOP, FinishReason.LENGTH)
        if not ended_well:
            self.aborted_s[request.request_id] = self._env.now
        self._close(request.request_id, Status.FINISHED if ended_well else Status.ABORTED)

    def _log_counts(self, request: Request) -> None:
        log, request_id = self.recorder.requests, request.request_id
        log.output_tokens[request_id] = request.num_output_tokens
        log.cached_tokens[request_id] = max(request.num_cached_tokens, 0)
        log.num_preemptions[request_id] = request.num_preemptions
        log.recomputed_tokens[request_id] = request.num_recomputed_tokens

    def _close(self, request_id: int, status: Status) -> None:
        """A request has ended."""
        self.recorder.requests.status[request_id] = status
        self._num_ended += 1
        self._last_end_s = self._env.now
        self._clients.on_end(request_id, served=status is Status.FINISHED)
        if self._progress is not None and self._num_ended % _PROGRESS_EVERY == 0:
            self._progress(self._env.now, self._num_ended, len(self._table))

    def _check_step(self, replica: Replica, batch: Batch) -> None:
        assert self._laws is not None
        self._laws.after_step(replica, batch, self._env.now)


def _name(names: Sequence[str], number: int) -> str | None:
    return names[number] if number >= 0 else None
