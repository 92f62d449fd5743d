"""Plays a case on this engine, in the loop it was recorded with, and yields the records it makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from scheduler import EngineCore, KVReport, SchedulerOutput
from sim.evidence.conform.build import build_engine, build_input, build_request
from sim.evidence.conform.case import Case, Event, Record
from sim.evidence.conform.model import PretendedModel
from sim.evidence.conform.records import FinalRecorder, StepRecorder
from sim.evidence.conform.transfers import ScriptedConnector


class Replay:
    """One case under way. `records()` drives it; afterwards `final()` describes the end."""

    def __init__(self, case: Case, *, plain: bool = False) -> None:
        self.case = case
        self.model = PretendedModel(case)
        self.connector = ScriptedConnector(case) if case.config.get("connector", False) else None
        self.engine: EngineCore = build_engine(case, self.model, self.connector, plain=plain)
        self._events: deque[Event] = deque(case.events)
        self._last_event_t = max((event.t for event in case.events), default=-1)
        self._in_flight: deque[tuple[int, SchedulerOutput]] = deque()
        self._t = 0
        self._steps = StepRecorder(case, self.engine)
        self.engine.observe_output(self._steps.note_output)
        self._final = FinalRecorder(case, self.engine, self.model)

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
        self._final.truncated = engine.has_work() or engine.has_unfinished_requests()

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
            ahead = self.case.config.get("async_sched", False)
            queues = output.total_num_scheduled_tokens > 0 or (
                engine.release.rules.empty_batches_queue and engine.has_work()
            )
            if ahead and queues and len(self._in_flight) < 2:
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
                request = build_request(self.case, args[0])
                self._final.added(request)
                engine.add_request(request)
            case "abort":
                engine.abort_requests(args[0])
            case "grammar":
                engine.grammar_ready(args[0])
            case "chunk":
                engine.submit_input(args[0], build_input(args[1], args[2], args[3]))
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
