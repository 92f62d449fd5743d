"""Plays a case on this engine, in the loop it was recorded with, and yields the records it makes.

The engine and its requests are made of the case's configuration and scripts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, cast

from scheduler import (
    EngineCore,
    GroupKind,
    KVCacheConfig,
    KVGroupSpec,
    KVReport,
    Request,
    SchedulerConfig,
    SchedulerOutput,
    SessionInput,
    SpeculativeConfig,
)
from scheduler.release import release
from sim.evidence.conform.case import Case, ConfigScript, Event, GroupScript, Record, SpecScript
from sim.evidence.conform.extended import ExtendedRecorder
from sim.evidence.conform.pretended import PretendedModel, ScriptedConnector
from sim.evidence.conform.records import FinalRecorder, StepRecorder


class Replay:
    """One case under way. `records()` drives it; afterwards `final()` describes the end.

    `plain`: without a cohort; only so can KV events be listened to.
    """

    def __init__(self, case: Case, *, plain: bool = False) -> None:
        self.case = case
        self.model = PretendedModel(case)
        self.connector = ScriptedConnector(case) if case.config.get("connector", False) else None
        self.engine: EngineCore = _build_engine(case, self.model, self.connector, plain=plain)
        self._events: deque[Event] = deque(case.events)
        self._last_event_t = max((event.t for event in case.events), default=-1)
        self._depth = _batches_in_flight(case.config)
        self._in_flight: deque[tuple[int, SchedulerOutput]] = deque()
        self._t = 0
        extended = ExtendedRecorder(case, self.engine, listens=plain)
        self._steps = StepRecorder(case, self.engine, extended)
        self.engine.observe_output(self._steps.note_output)
        self._final = FinalRecorder(case, self.engine, self.model, extended)

    def records(self) -> Iterator[Record]:
        """One record per executed step."""
        engine = self.engine
        while self._t < self.case.max_steps:
            aborts_later = self._apply_events()
            if engine.has_work() or self._in_flight:
                self._step(aborts_later)
                yield self._close_record()
            elif self._t > self._last_event_t:
                return
            else:
                self._abort(aborts_later)
                if self._steps.has_events():
                    yield self._steps.take_events_only(self._t)
                    self._final.num_steps += 1
            self._t += 1
        self._final.truncated = engine.has_work() or bool(self._in_flight)

    def final(self) -> Record:
        """The end of the run."""
        return self._final.make()

    # --- one step ---------------------------------------------------------------------------------------

    def _step(self, aborts_later: list[Event]) -> None:
        engine = self.engine
        if self.connector:
            self.connector.now = self._t
        self._steps.begin(self._t)
        if engine.has_work():
            self._steps.before_schedule()
            output = engine.schedule()
            self._steps.after_schedule(output)
            self._final.after_schedule(output)
            self._in_flight.append((self._t, output))
            queues = output.total_num_scheduled_tokens > 0 or (
                engine.release.rules.empty_batches_queue and engine.has_work()
            )
            if queues and len(self._in_flight) < self._depth:
                self._abort(aborts_later)
                return
        self._abort(aborts_later)
        step, output = self._in_flight.popleft()
        report: KVReport | None = None
        if self.connector:
            report = self.connector.report(step)
        outputs = engine.update(output, self.model.sample, report)
        self.model.note(outputs)
        if self.case.config.get("spec") and not self.case.config.get("async_sched", False):
            engine.propose_drafts(output, self.model.propose(output))
        self._steps.after_update(step, outputs, report)

    def _close_record(self) -> Record:
        self._final.num_steps += 1
        return self._steps.close()

    # --- events -----------------------------------------------------------------------------------------

    def _apply_events(self) -> list[Event]:
        """Apply the events of this step; returns those that come after its schedule()."""
        later = []
        while self._events and self._events[0].t <= self._t:
            event = self._events.popleft()
            if event.kind == "abort_mid":
                later.append(event)
            else:
                self._apply(event)
        return later

    def _apply(self, event: Event) -> None:
        engine, args = self.engine, event.args
        if self.connector:
            self.connector.now = self._t
        match event.kind:
            case "add":
                request = _build_request(self.case, args[0])
                self._final.added(request)
                engine.add_request(request)
            case "abort":
                engine.abort_requests(args[0])
            case "grammar":
                engine.grammar_ready(args[0])
            case "chunk":
                engine.submit_input(args[0], _build_input(args[1], args[2], args[3]))
            case "end":
                engine.submit_input(args[0], None)
            case "reset":
                ok, preempted = engine.reset_prefix_cache(preempt_running=bool(args[0]))
                self._steps.note_reset(ok, bool(args[0]), preempted)
            case "pause":
                engine.pause(args[0])
            case _:
                raise NotImplementedError(f"event {event.kind!r}")

    def _abort(self, events: list[Event]) -> None:
        for event in events:
            self.engine.abort_requests(event.args[0])


# --- from a case to the engine's own objects ------------------------------------------------------------


def _batches_in_flight(script: ConfigScript) -> int:
    """How many batches the engine of a case has in flight at most."""
    return script.get("in_flight") or (2 if script.get("async_sched", False) else 1)


def _build_engine(
    case: Case, model: PretendedModel, connector: ScriptedConnector | None, *, plain: bool = False
) -> EngineCore:
    """The engine that a case was recorded with; `plain`: without a cohort.

    Its release is that of the recording, with every switch as the case says: an absent one is off.
    """
    return EngineCore(
        scheduler_config(case.config),
        kv_cache_config(case.config),
        connector=connector,
        draft_validator=model,
        release=release(case.release),
        forecast=None if plain else model.steady_tokens,
        most_in_flight=_batches_in_flight(case.config),
        names_everybody=True,
    )


def scheduler_config(script: ConfigScript) -> SchedulerConfig:
    """Limits and policies, with the format's defaults."""
    spec = script.get("spec")
    return SchedulerConfig(
        max_num_seqs=script.get("max_num_seqs", 16),
        max_num_batched_tokens=script.get("max_num_batched_tokens", 512),
        max_model_len=script.get("max_model_len", 4096),
        long_prefill_token_threshold=script.get("long_prefill_token_threshold", 0),
        enable_chunked_prefill=script.get("chunked_prefill", True),
        policy=cast("Literal['fcfs', 'priority']", script.get("policy", "fcfs")),
        async_scheduling=script.get("async_sched", False),
        pipeline_parallel_size=script.get("pp") or 1,
        speculative=_speculative_config(spec) if spec else None,
        max_loras=script.get("max_loras"),
        kv_load_failure_policy=cast(
            "Literal['recompute', 'fail']", script.get("kv_load_failure_policy", "recompute")
        ),
        include_finished_set=script.get("include_finished_set", False),
        reserve_full_prompt=script.get("reserve_full_prompt", False),
        watermark=script.get("watermark", 0.0),
        max_num_scheduled_tokens=script.get("max_num_scheduled_tokens"),
        max_active=script.get("max_active"),
        long_prefill_adaptive=script.get("long_prefill_adaptive", False),
        prefill_interval=script.get("prefill_interval", 1),
    )


def _speculative_config(script: SpecScript) -> SpeculativeConfig:
    """The drafter of a case."""
    return SpeculativeConfig(
        cast("Literal['ngram']", script["kind"]),
        script["k"],
        lookahead_hashes=script.get("lookahead_hashes", False),
        parallel=script.get("parallel", False),
        drafts_by_batch=tuple((first, last, k) for first, last, k in script.get("by_batch") or ()),
    )


def kv_cache_config(script: ConfigScript) -> KVCacheConfig:
    """Blocks and groups, with the format's defaults."""
    block_size = script.get("hash_block_size", 16)
    groups = script.get("groups") or [GroupScript(type="full")]
    return KVCacheConfig(
        num_blocks=script.get("num_blocks", 1000),
        block_size=block_size,
        hash_block_size=block_size,
        enable_caching=script.get("prefix_caching", True),
        window_retention_tokens=script.get("retention"),
        groups=tuple(
            KVGroupSpec(
                kind=GroupKind(group["type"]),
                block_size=group.get("block_size", block_size),
                window=group.get("window", 0),
                chunk=group.get("chunk", 0),
                mamba_mode=cast("Literal['none', 'align', 'all']", group.get("mode", "none")),
                num_speculative_blocks=group.get("spec_blocks", 0),
            )
            for group in groups
        ),
    )


def _build_request(case: Case, request_id: int) -> Request:
    """Request number `request_id` of a case."""
    script = case.requests[request_id]
    lora = script.get("lora", 0)
    salt = script.get("salt")
    return Request(
        request_id,
        [(start, length) for start, length in script["prompt"]],
        script["max_tokens"],
        arrival_time=script.get("at", request_id),
        priority=script.get("prio", 0),
        client_index=script.get("client", 0),
        min_tokens=script.get("min_tokens", 0),
        ignore_eos=script.get("ignore_eos", False),
        stop_token_ids=script.get("stop_ids", ()),
        lora_name=f"lora{lora}" if lora else None,
        cache_salt=None if salt is None else str(salt),
        skip_reading_prefix_cache=script.get("skip_cache", False),
        needs_grammar=script.get("fsm", False),
        resumable=script.get("resumable", False),
    )


def _build_input(prompt: list[tuple[int, int]], max_tokens: int, arrival_time: float) -> SessionInput:
    """The next input of a streaming session; its sampling parameters are those of the session."""
    return SessionInput(tuple((start, length) for start, length in prompt), max_tokens, arrival_time)
