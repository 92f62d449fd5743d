"""Scheduling ahead of the GPU: a step is planned while the tokens of the step before are still unknown.

A request then has *output placeholders*: tokens that are scheduled but have not come back. They count as
tokens to compute, so the request can take part in the next step. The two classes here are the bookkeeping of
an engine without and with scheduling ahead; the phases and the update call them in the same few places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.config import SchedulerConfig
from scheduler.kv_cache.coordinator import KVCache
from scheduler.output import SchedulerOutput
from scheduler.request import Request
from scheduler.status import RequestStatus
from scheduler.stopping import StopRules

Deliver = Callable[[Request, Sequence[int]], RequestStatus | None]


class SyncBookkeeping:
    """One batch at a time: what was scheduled has come back before the next step is planned."""

    def __init__(self, config: SchedulerConfig, kv_cache: KVCache) -> None:
        self.kv_cache = kv_cache
        self.deliver: Deliver = StopRules(config).append
        """Takes a request and a step's tokens for it, appends them, returns the final status if they end
        it.
        """

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """Called at the end of schedule()."""

    def note_rejected(self, request: Request, num_rejected: int) -> None:
        """Draft tokens turned out wrong: their KV does not count."""
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_rejected

    def note_reset(self, request: Request) -> None:
        """The request was preempted by a reset of the prefix cache."""
        request.num_output_placeholders = 0
        request.discard_next_output = True


class AsyncBookkeeping(SyncBookkeeping):
    """Placeholders for tokens in flight."""

    def __init__(self, config: SchedulerConfig, kv_cache: KVCache) -> None:
        super().__init__(config, kv_cache)
        self._append = self.deliver
        self.deliver = self._deliver
        self._num_drafts = config.speculative.num_speculative_tokens if config.speculative else 0

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """Everything that samples in this step has one more token in flight, and its drafts."""
        drafts = output.scheduled_spec_decode_tokens
        for request, samples in zip(output.requests, output.samples, strict=True):
            if samples:
                request.num_output_placeholders += 1
                if drafts:
                    request.num_output_placeholders += drafts.get(request.request_id, 0)
        if self._num_drafts:
            for request, samples in zip(output.requests, output.samples, strict=True):
                if samples:
                    request.num_draft_tokens = self._num_drafts

    def note_rejected(self, request: Request, num_rejected: int) -> None:
        """Rejected drafts are no longer in flight either."""
        super().note_rejected(request, num_rejected)
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def _deliver(self, request: Request, tokens: Sequence[int]) -> RequestStatus | None:
        """Tokens come out of flight; full blocks of what is now known are entered in the prefix cache."""
        if request.discard_next_output:
            request.discard_next_output = False
            return None
        was_running = request.status is RequestStatus.RUNNING
        before = request.num_tokens
        final = self._append(request, tokens)
        in_flight = request.num_output_placeholders - (request.num_tokens - before)
        request.num_output_placeholders = in_flight
        processed = request.num_computed_tokens - in_flight
        if processed >= request.next_full_tokens and was_running and self.kv_cache.caching:
            self.kv_cache.enter(request, processed)
        return final
