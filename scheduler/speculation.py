"""Speculative decoding: drafts are attached after a step, verified in the next, and rolled back if wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.config import SpeculativeConfig
from scheduler.output import SchedulerOutput
from scheduler.release import Release
from scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a kind of drafter asks of the scheduler. All zero: no speculation. Counts are tokens per
    request.
    """

    num_drafts: int = 0
    """Drafts proposed after a step."""
    reads_ahead: int = 0
    """Tokens beyond a position that the drafter needs to draft from it."""
    lookahead_slots: int = 0
    """KV slots beyond a request's own tokens into which it writes."""
    drafting_slots: int = 0
    """Places in the batch that it takes beside the request's own tokens."""
    hash_lookahead: int = 0
    """Tokens after a block that its hash covers."""
    drops_last_hit: bool = False
    """The last block of a prefix hit must be computed again, for the drafter needs its hidden states."""
    drafts_by_batch: tuple[tuple[int, int, int], ...] = ()

    def num_drafts_after(self, num_requests: int) -> int:
        """Drafts proposed after a step of so many requests."""
        for first, last, num_drafts in self.drafts_by_batch:
            if first <= num_requests <= last:
                return num_drafts
        return self.num_drafts


def drafter(
    config: SpeculativeConfig | None, release: Release, *, caching: bool, has_connector: bool
) -> Drafter:
    """The drafter of a configuration under a release's rules."""
    if config is None:
        return Drafter()
    kind, k, rules = config.kind, config.num_speculative_tokens, release.rules
    reads_ahead = {"eagle": 1, "dflash": 1, "mtp_multi": k}.get(kind, 0)
    lookahead = {"eagle": k, "mtp_multi": k, "draft_model": k, "dflash": k + 1}.get(kind, 0)
    hashed_ahead = config.lookahead_hashes
    if hashed_ahead is None:
        hashed_ahead = release.defaults.lookahead_hashes
    hashed_ahead = hashed_ahead and kind in ("eagle", "mtp_multi") and caching and not has_connector
    if not rules.drafting_slots_are_charged:
        slots = 0
    elif kind == "draft_model":
        slots = k if config.parallel else 1
    else:
        slots = k - 1 if config.parallel and kind != "dflash" else 0
    return Drafter(
        num_drafts=k,
        reads_ahead=reads_ahead if rules.last_chunks_feed_the_drafter else 0,
        lookahead_slots=lookahead,
        drafting_slots=slots,
        hash_lookahead=reads_ahead if hashed_ahead else 0,
        drops_last_hit=kind in ("eagle", "mtp_multi") and not hashed_ahead,
        drafts_by_batch=config.drafts_by_batch,
    )


class DraftValidator(Protocol):
    """The compiled grammars, as far as a scheduler needs them."""

    def num_valid(self, request: Request, num_drafts: int) -> int:
        """How many leading draft tokens the request's grammar accepts."""
        ...


class AcceptAll:
    """A grammar that has nothing against any draft."""

    def num_valid(self, request: Request, num_drafts: int) -> int:
        """All of them."""
        return num_drafts


def use_drafts(request: Request, num_tokens: int, output: SchedulerOutput) -> None:
    """The request is being scheduled for `num_tokens`: those beyond its known tokens verify drafts.

    Drafts are good for one step, used or not. Call before the tokens are counted as computed.
    """
    known = request.num_tokens + request.num_output_placeholders
    num_drafts = num_tokens + request.num_computed_tokens - known
    if num_drafts > 0:
        output.scheduled_spec_decode_tokens[request.request_id] = num_drafts
    request.num_draft_tokens = 0


def attach_drafts(requests: Sequence[Request], num_drafts: Sequence[int], validator: DraftValidator) -> None:
    """After a synchronous step: the drafts proposed for each request wait for its next step.

    Requests that are still computing their prompt get none; a grammar cuts the drafts at the first misfit.
    """
    for request, count in zip(requests, num_drafts, strict=True):
        if request.is_finished:
            continue
        if request.is_prefill_chunk:
            request.num_draft_tokens = 0
        elif request.needs_grammar:
            request.num_draft_tokens = validator.num_valid(request, count)
        else:
            request.num_draft_tokens = count
