"""From what the scheduler decided to what the cost models and the records need: SchedulerOutput → StepShape.

A chunk is classified by its scheduled token count alone, never by a phase flag: one token is a decode, more
are a prefill chunk. (The last single token of a prompt attends to its context exactly as a decode does.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cost_models import DecodeRun, StepCost, StepShape
from scheduler import SchedulerOutput


class StepTimer(Protocol):
    """What a replica needs of a cost model: `cost_models.StepCostModel`, or a constant of a test."""

    def step(self, shape: StepShape) -> StepCost:
        """Seconds of any step."""

    def decode_step(
        self, num_decodes: int, decode_context_tokens: int, max_decode_context_tokens: int
    ) -> StepCost:
        """The same as `step` for a step of sampling decodes alone, from its sums."""

    def decode_run(
        self, num_decodes: int, decode_context_tokens: int, max_decode_context_tokens: int, num_steps: int
    ) -> DecodeRun:
        """`decode_step` for that step and those in which the same requests decode on."""


def time_step(
    timer: StepTimer, output: SchedulerOutput, windows: Sequence[int]
) -> tuple[StepCost, tuple[int, int, int]]:
    """What a non-empty step costs, and its tokens by kind (see `token_split`)."""
    before, steady = output.num_computed_before, output.num_steady
    num_requests = len(before) + steady
    plain = output.total_num_scheduled_tokens == num_requests and all(output.samples)
    if plain and not windows and not output.num_recomputed_tokens:
        context = sum(before) + output.steady_computed_tokens + num_requests
        longest = max(before, default=0)
        if output.most_steady_computed_tokens > longest:
            longest = output.most_steady_computed_tokens
        return timer.decode_step(num_requests, context, longest + 1), (num_requests, 0, 0)
    shape = step_shape(output, windows)
    return timer.step(shape), token_split(output, shape)


def step_shape(output: SchedulerOutput, windows: Sequence[int] = ()) -> StepShape:
    """The shape of a non-empty step; `windows` are the model's attention windows in tokens, in its order.

    Members of the cohort are decodes like others (there are none with windows).
    """
    scheduled, before = output.num_scheduled_tokens, output.num_computed_before
    steady = output.num_steady
    num_requests, num_tokens = len(scheduled) + steady, output.total_num_scheduled_tokens
    chunks: tuple[tuple[int, int], ...] = ()
    decodes_before = before
    if num_tokens != num_requests:
        chunks = tuple([(n, c) for n, c in zip(scheduled, before, strict=True) if n != 1])
        decodes_before = [c for n, c in zip(scheduled, before, strict=True) if n == 1]
    num_decodes = len(decodes_before) + steady
    longest = max(output.most_steady_computed_tokens, max(decodes_before, default=0))
    return StepShape(
        num_tokens=num_tokens,
        num_decodes=num_decodes,
        decode_context_tokens=sum(decodes_before) + output.steady_computed_tokens + num_decodes,
        max_decode_context_tokens=longest + 1 if num_decodes else 0,
        window_context_tokens=tuple([sum([min(c + 1, w) for c in decodes_before]) for w in windows]),
        prefill_chunks=chunks,
        num_sampled=sum(output.samples) + steady,
        num_requests=num_requests,
    )


def token_split(output: SchedulerOutput, shape: StepShape) -> tuple[int, int, int]:
    """Tokens of the step by kind: decode, prefill, and recomputed after a preemption. They add up to all."""
    recomputed = output.num_recomputed_tokens
    decodes = shape.num_decodes
    if recomputed:
        columns = zip(output.requests, output.num_scheduled_tokens, output.num_computed_before, strict=True)
        decodes -= sum(n == 1 and before < request.high_water_tokens for request, n, before in columns)
    return decodes, shape.num_tokens - decodes - recomputed, recomputed
