"""After the model ran: tokens are appended, wrong drafts rolled back, ended requests freed and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler import lifecycle
from scheduler.async_scheduling import Arrival, SyncBookkeeping
from scheduler.connector import KVReport
from scheduler.output import EngineCoreOutputs, RequestOutput, SchedulerOutput
from scheduler.remote_loads import RemoteLoads
from scheduler.request import Request
from scheduler.speculation import SpecDecodeStats
from scheduler.state import EngineState
from scheduler.status import FINISH_REASONS, RequestStatus
from scheduler.streaming import Sessions

_FIRST_FINISHED = RequestStatus.FINISHED_STOPPED


class OutputUpdate:
    """Applies the outputs of steps to an engine's state."""

    def __init__(
        self, state: EngineState, bookkeeping: SyncBookkeeping, sessions: Sessions, remote_loads: RemoteLoads
    ) -> None:
        self.state = state
        self.bookkeeping = bookkeeping
        self.sessions = sessions
        self.remote_loads = remote_loads
        self.spec_decode_stats = SpecDecodeStats()
        self.observer: Callable[[Request], None] | None = None

    def apply(
        self, output: SchedulerOutput, sampled: Sequence[Sequence[int]], report: KVReport | None = None
    ) -> EngineCoreOutputs:
        """Append the sampled tokens, one list per scheduled request, and report what came of it."""
        entries: list[RequestOutput] = []
        worthless: set[int] = set()
        errors: list[RequestOutput] = []
        if self.state.deferred_frees and output.requests:
            self.state.release_deferred(output.step_number)
        if report is not None and report.invalid_blocks:
            worthless, errors = self.remote_loads.take_invalid_blocks(report.invalid_blocks, output)
        cohort = self.state.cohort
        stopped: list[tuple[Request, RequestStatus]] = []
        going_on: list[Request] = []
        bookkeeping = self.bookkeeping
        drafted = bool(output.scheduled_spec_decode_tokens)
        arrivals = self._note_arrivals(output) if bookkeeping.counts_tokens_in_flight else None
        deliver = bookkeeping.deliver
        for i, (request, tokens) in enumerate(zip(output.requests, sampled, strict=True)):
            if not tokens or request.status >= _FIRST_FINISHED or request.request_id in worthless:
                continue
            stale = arrivals is not None and arrivals[i] is not Arrival.LIVE
            if stale and arrivals is not None and arrivals[i] is Arrival.WORTHLESS:
                continue
            if drafted:
                self._roll_back(request, len(tokens), output, stale)
            before = request.num_tokens
            final = bookkeeping.deliver_stale(request, tokens) if stale else deliver(request, tokens)
            count = request.num_tokens - before
            if count and self.observer is not None:
                self.observer(request)
            if final is None:
                if count:
                    entries.append((request, count, None))
            else:
                stopped.append((request, request.status))
                entries.append((request, count, FINISH_REASONS[final]))
                if self._stop(request, final):
                    going_on.append(request)
        if stopped:
            self._leave_queues(stopped)
        for request in going_on:
            lifecycle.enqueue(self.state, request)
        if report is not None:
            self.remote_loads.take_report(report)
        entries += errors
        if cohort is not None:
            cohort.note_updated(output)
        return EngineCoreOutputs(entries, self._finished_by_client())

    def _note_arrivals(self, output: SchedulerOutput) -> list[Arrival]:
        """What the output is to each request; also those that have ended or failed are told."""
        note = self.bookkeeping.note_arrival
        return [
            note(request, count)
            for request, count in zip(output.requests, output.num_scheduled_tokens, strict=True)
        ]

    def _roll_back(self, request: Request, num_tokens: int, output: SchedulerOutput, stale: bool) -> None:
        num_drafts = output.scheduled_spec_decode_tokens.get(request.request_id, 0)
        if num_drafts:
            num_accepted = num_tokens - 1
            if not stale:
                self.bookkeeping.note_rejected(request, num_drafts - num_accepted)
            stats = self.spec_decode_stats
            stats.num_drafts += 1
            stats.num_draft_tokens += num_drafts
            stats.num_accepted_tokens += num_accepted

    def _stop(self, request: Request, final: RequestStatus) -> bool:
        """End a request; or a turn of a session that goes on, True if it is still to be enqueued."""
        if request.resumable and not self.sessions.end_turn(request):
            if self.state.rules.sessions_queue_after_the_update:
                return True
            lifecycle.enqueue(self.state, request)
            return False
        request.move_to(final)
        lifecycle.end(self.state, request)
        return False

    def _leave_queues(self, stopped: list[tuple[Request, RequestStatus]]) -> None:
        """Requests leave the queue in which they stood when their last token came."""
        if len(stopped) == 1 and stopped[0][1] is RequestStatus.RUNNING:
            self.state.running.remove(stopped[0][0])
            return
        from_running = {request for request, was in stopped if was is RequestStatus.RUNNING}
        from_waiting = {request for request, was in stopped if was is not RequestStatus.RUNNING}
        if from_running:
            running = self.state.running
            running[:] = [request for request in running if request not in from_running]
        if from_waiting:
            self.state.waiting.remove(from_waiting)

    def _finished_by_client(self) -> dict[int, set[int]] | None:
        finished = self.state.finished_by_client
        if finished is not None:
            self.state.finished_by_client = {}
        return finished
