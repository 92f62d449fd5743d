"""After the model ran: tokens are appended, wrong drafts rolled back, ended requests freed and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.bookkeeping import LIVE, Arrival, SyncBookkeeping
from scheduler.connector import KVReport
from scheduler.output import EngineCoreOutputs, RequestOutput, SchedulerOutput
from scheduler.remote_loads import RemoteLoads
from scheduler.request import FINISH_REASONS, FIRST_FINISHED, RUNNING, Request, RequestStatus, place_of
from scheduler.state import EngineState, SpecDecodeStats
from scheduler.streaming import Sessions


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
        self,
        output: SchedulerOutput,
        sampled: Sequence[list[int]],
        report: KVReport | None = None,
        num_unnamed: int = 0,
    ) -> EngineCoreOutputs:
        """Append the sampled tokens, one list per request named in the output, and report what came of it.

        `num_unnamed` members of the cohort got a token too.
        """
        state, bookkeeping = self.state, self.bookkeeping
        if len(sampled) != len(output.requests):
            raise ValueError(f"tokens of {len(sampled)} requests, but {len(output.requests)} were scheduled")
        entries: list[RequestOutput] = []
        worthless: set[int] | None = None
        broken: list[Request] | None = None
        if state.deferred_frees is not None and output.requests:
            state.deferred_frees.release(output.step_number)
        if report is not None and report.invalid_blocks:
            worthless, broken = self.remote_loads.take_invalid_blocks(report.invalid_blocks, output)
        from_waiting: list[Request] | None = None
        going_on: list[Request] | None = None
        drafted = bool(output.scheduled_spec_decode_tokens)
        arrivals = self._note_arrivals(output) if bookkeeping.counts_tokens_in_flight else None
        for i, request in enumerate(output.requests):
            tokens = sampled[i]
            status = request.status
            if not tokens or status >= FIRST_FINISHED:
                continue
            if worthless is not None and request.request_id in worthless:
                continue
            stale = arrivals is not None and arrivals[i] is not LIVE
            if stale and arrivals is not None and arrivals[i] is Arrival.WORTHLESS:
                continue
            if drafted:
                self._roll_back(request, len(tokens), output, stale)
            before = request.num_tokens
            if stale:
                final = bookkeeping.deliver_stale(request, tokens)
            else:
                final = bookkeeping.deliver(request, tokens)
            count = request.num_tokens - before
            if count and self.observer is not None:
                self.observer(request)
            if final is None:
                if count:
                    entries.append((request, count, None))
                continue
            entries.append((request, count, FINISH_REASONS[final]))
            if status is RUNNING:
                state.running.pop(place_of(request, state.running))
            else:
                from_waiting = [request] if from_waiting is None else [*from_waiting, request]
            if self._stop(request, final):
                going_on = [request] if going_on is None else [*going_on, request]
        if from_waiting is not None:
            state.waiting.remove(from_waiting)
        if going_on is not None:
            for request in going_on:
                state.waiting.add(request)
        if broken:
            entries += self.remote_loads.fail(broken)
        if report is not None:
            self.remote_loads.take_report(report)
        return EngineCoreOutputs(entries, self._finished_by_client(), num_unnamed)

    def _note_arrivals(self, output: SchedulerOutput) -> list[Arrival]:
        """What the output is to each request; also those that have ended or failed are told."""
        bookkeeping, counts = self.bookkeeping, output.num_scheduled_tokens
        return [bookkeeping.note_arrival(request, counts[i]) for i, request in enumerate(output.requests)]

    def _roll_back(self, request: Request, num_tokens: int, output: SchedulerOutput, stale: bool) -> None:
        num_drafts = output.scheduled_spec_decode_tokens.get(request.request_id, 0)
        if num_drafts:
            num_accepted = num_tokens - 1
            if not stale:
                self.bookkeeping.note_rejected(request, num_drafts - num_accepted)
            self.spec_decode_stats.count(num_drafts, num_accepted)

    def _stop(self, request: Request, final: RequestStatus) -> bool:
        """End a request; or a turn of a session that goes on, True if it is still to be enqueued."""
        if request.resumable and not self.sessions.end_turn(request):
            if self.state.rules.sessions_queue_after_the_update:
                return True
            self.state.waiting.add(request)
            return False
        request.move_to(final)
        self.state.end(request)
        return False

    def _finished_by_client(self) -> dict[int, set[int]] | None:
        finished = self.state.finished_by_client
        if finished is not None:
            self.state.finished_by_client = {}
        return finished
