"""Speculative decoding: drafts are attached after a step, verified in the next, and rolled back if wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.config import SpeculativeConfig
from scheduler.grammar import DraftValidator
from scheduler.output import SchedulerOutput
from scheduler.request import Request


@dataclass(slots=True)
class SpecDecodeStats:
    """Drafts verified so far: how many times, how many tokens, how many accepted."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


def num_lookahead_tokens(speculative: SpeculativeConfig | None) -> int:
    """KV slots beyond a request's own tokens that its drafter writes into."""
    if speculative is None or speculative.kind == "ngram":
        return 0
    return speculative.num_speculative_tokens


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
        if request.num_computed_tokens < request.num_tokens - 1:
            request.num_draft_tokens = 0
        elif request.needs_grammar:
            request.num_draft_tokens = validator.num_valid(request, count)
        else:
            request.num_draft_tokens = count
