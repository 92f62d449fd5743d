"""Scheduling ahead of the GPU: a step is planned while the tokens of the step before are still unknown.

A request then has *output placeholders*: tokens that are scheduled but have not come back. They count as
tokens to compute, so the request can take part in the next step. What is in flight when a request is
preempted must not be taken for output of its next life: early releases set a flag after a reset, later ones
count tokens in flight and know which output is *stale*. The classes here are the bookkeeping of an engine
without and with scheduling ahead; the phases and the update call them in the same few places.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from scheduler.config import SchedulerConfig
from scheduler.kv_cache.interface import KVCache
from scheduler.output import SchedulerOutput
from scheduler.release import Rules
from scheduler.request import RUNNING, Request, RequestStatus
from scheduler.speculation import Drafter


class StopRules:
    """Appends sampled tokens until one ends the request: EOS, a stop token, or a length limit."""

    __slots__ = ("eos_token_id", "ignore_min_tokens", "max_model_len")

    def __init__(self, config: SchedulerConfig, rules: Rules) -> None:
        self.ignore_min_tokens = rules.ignore_min_tokens
        self.eos_token_id = config.eos_token_id
        self.max_model_len = config.max_model_len

    def append(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """Append tokens one by one; after one that ends the request the rest is cut.

        Returns the final status, None if the request goes on. Before `min_tokens` outputs nothing ends it;
        then, in this order: EOS unless ignored, a stop token, the model's or the request's length limit.
        """
        for token in tokens:
            position = request.num_tokens
            if token - position != request.tokens.shifts[-1]:
                request.tokens.append(position, token)
            request.num_tokens = position + 1
            num_outputs = request.num_output_tokens + 1
            request.num_output_tokens = num_outputs
            if num_outputs < request.min_tokens and not self.ignore_min_tokens:
                continue
            if token == self.eos_token_id and not request.ignore_eos:
                return RequestStatus.FINISHED_STOPPED
            if request.stop_token_ids and token in request.stop_token_ids:
                request.stop_reason = token
                return RequestStatus.FINISHED_STOPPED
            if num_outputs >= request.max_tokens or position + 1 >= self.max_model_len:
                return RequestStatus.FINISHED_LENGTH_CAPPED
        return None


class Arrival(Enum):
    """What a step's output is to a request when it comes back."""

    LIVE = 0
    STALE = 1
    """It was in flight when the request was preempted: its tokens count, its computed tokens do not."""
    WORTHLESS = 2
    """It belongs to something that was given up, and is dropped."""


LIVE: Final = Arrival.LIVE


class SyncBookkeeping:
    """One batch at a time: what was scheduled has come back before the next step is planned."""

    counts_tokens_in_flight = False
    """Whether `note_arrival` must be called for every scheduled request."""

    def __init__(self, config: SchedulerConfig, rules: Rules, drafter: Drafter, kv_cache: KVCache) -> None:
        self.kv_cache = kv_cache
        self.rules = rules
        self.drafter = drafter
        self.stop_rules = StopRules(config, rules)
        self._enters_after_outputs = kv_cache.caching and drafter.num_drafts > 0 and rules.enter_after_outputs
        self._uncounts_cut_tokens = drafter.num_drafts > 0 and rules.uncount_cut_tokens

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """Called at the end of schedule()."""

    def note_arrival(self, request: Request, num_scheduled: int) -> Arrival:
        """The output of a step that scheduled so many tokens for the request is there."""
        return LIVE

    def awaits_stale_output(self, request: Request) -> bool:
        """Whether output from before a preemption or a reset is still to be dealt with."""
        return request.drop_stale_output

    def note_rejected(self, request: Request, num_rejected: int) -> None:
        """Draft tokens turned out wrong: their KV does not count."""
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_rejected

    def deliver(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """Append a step's tokens for a request; returns the final status if they end it."""
        before = request.num_tokens
        final = self.stop_rules.append(request, tokens)
        if self._uncounts_cut_tokens:
            request.num_computed_tokens -= len(tokens) - (request.num_tokens - before)
        if self._enters_after_outputs:
            self.kv_cache.enter(request, request.num_computed_tokens - request.num_tokens_in_flight)
        return final

    def deliver_stale(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """`deliver` for stale output: nothing but the tokens changes."""
        return self.stop_rules.append(request, tokens)

    def note_preempted(self, request: Request, *, by_reset: bool) -> None:
        """The request has lost its place (`by_reset`: for a reset of the prefix cache)."""

    def note_turn_ended(self, request: Request) -> None:
        """A turn of a streaming session is over."""


class AsyncBookkeeping(SyncBookkeeping):
    """Placeholders for tokens in flight; after a reset a flag lets the next output be dropped."""

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """Everything that samples in this step has one more token in flight, and its drafts."""
        drafts, samples = output.scheduled_spec_decode_tokens, output.samples
        for i, request in enumerate(output.requests):
            if samples[i]:
                request.num_output_placeholders += 1
                if drafts:
                    request.num_output_placeholders += drafts.get(request.request_id, 0)
        if self.drafter.num_drafts:
            num_drafts = self.drafter.num_drafts_after(len(output.requests))
            for i, request in enumerate(output.requests):
                if samples[i]:
                    request.num_draft_tokens = num_drafts

    def note_rejected(self, request: Request, num_rejected: int) -> None:
        """Rejected drafts are no longer in flight either."""
        super().note_rejected(request, num_rejected)
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def note_preempted(self, request: Request, *, by_reset: bool) -> None:
        """Only a reset makes what is in flight worthless."""
        if by_reset:
            request.num_output_placeholders = 0
            request.drop_stale_output = True

    def deliver(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """Tokens come out of flight; full blocks of what is now known are entered in the prefix cache."""
        if request.drop_stale_output:
            request.drop_stale_output = False
            return None
        was_running = request.status is RUNNING
        before = request.num_tokens
        final = self.stop_rules.append(request, tokens)
        in_flight = request.num_output_placeholders - (request.num_tokens - before)
        request.num_output_placeholders = in_flight
        processed = request.num_computed_tokens - in_flight
        if processed >= request.next_full_tokens and was_running and self.kv_cache.caching:
            self.kv_cache.enter(request, processed)
        return final


class TrackingBookkeeping(AsyncBookkeeping):
    """Counts all tokens in flight, prefills too, and knows which of them were in flight at a preemption.

    It serves engines that schedule ahead, pipelines, and engines with a connector, for a request may be
    aborted amid a step; without scheduling ahead nothing has placeholders.
    """

    counts_tokens_in_flight = True

    def __init__(
        self,
        config: SchedulerConfig,
        rules: Rules,
        drafter: Drafter,
        kv_cache: KVCache,
        *,
        has_connector: bool = False,
    ) -> None:
        super().__init__(config, rules, drafter, kv_cache)
        self._ahead = config.async_scheduling
        self._preempted_lose_output = has_connector and rules.defer_frees_in_flight

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """All scheduled tokens are in flight."""
        if self._ahead:
            super().note_scheduled(output)
        counts = output.num_scheduled_tokens
        for i, request in enumerate(output.requests):
            request.num_tokens_in_flight += counts[i]

    def note_arrival(self, request: Request, num_scheduled: int) -> Arrival:
        """Outputs come back in order, so the stale ones come first."""
        request.num_tokens_in_flight -= num_scheduled
        if request.num_stale_tokens <= 0:
            return LIVE
        request.num_stale_tokens -= num_scheduled
        return Arrival.WORTHLESS if request.drop_stale_output else Arrival.STALE

    def awaits_stale_output(self, request: Request) -> bool:
        """Whether output from before a preemption, a reset or the end of a turn is still in flight."""
        return request.num_stale_tokens > 0

    def note_preempted(self, request: Request, *, by_reset: bool) -> None:
        """Everything in flight is stale now."""
        request.num_output_placeholders = 0
        still_worthless = request.drop_stale_output and request.num_stale_tokens > 0
        request.drop_stale_output = by_reset or still_worthless or self._preempted_lose_output
        request.num_stale_tokens = request.num_tokens_in_flight

    def note_turn_ended(self, request: Request) -> None:
        """What was scheduled beyond the end of the turn is worthless and does not count as computed."""
        request.num_computed_tokens -= request.num_output_placeholders
        request.num_output_placeholders = 0
        request.num_draft_tokens = 0
        request.drop_stale_output = True
        request.num_stale_tokens = request.num_tokens_in_flight

    def deliver(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """Append the tokens; full blocks of what is now known are entered in the prefix cache."""
        if not self._ahead:
            return SyncBookkeeping.deliver(self, request, tokens)
        was_running = request.status is RUNNING
        before = request.num_tokens
        final = self.stop_rules.append(request, tokens)
        arrived = request.num_tokens - before
        if self.rules.uncount_cut_tokens:
            request.num_computed_tokens -= len(tokens) - arrived
            arrived = len(tokens)
        in_flight = request.num_output_placeholders - arrived
        request.num_output_placeholders = in_flight
        if not self.kv_cache.caching:
            return final
        if self.rules.enter_processed_tokens:
            in_flight = request.num_tokens_in_flight
        processed = request.num_computed_tokens - in_flight
        if self._enters_after_outputs or (was_running and processed >= request.next_full_tokens):
            self.kv_cache.enter(request, processed)
        return final


def make_bookkeeping(
    config: SchedulerConfig,
    rules: Rules,
    drafter: Drafter,
    kv_cache: KVCache,
    *,
    most_in_flight: int,
    has_connector: bool,
) -> SyncBookkeeping:
    """The bookkeeping for a configuration under a release's rules, with so many steps in flight at most."""
    if rules.track_stale_output and (config.async_scheduling or most_in_flight > 1 or has_connector):
        return TrackingBookkeeping(config, rules, drafter, kv_cache, has_connector=has_connector)
    kind = AsyncBookkeeping if config.async_scheduling else SyncBookkeeping
    return kind(config, rules, drafter, kv_cache)
