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
    scheduled, before, samples = output.num_scheduled_tokens, output.num_computed_before, output.samples
    steady = output.num_steady
    num_decodes = num_sampled = steady
    context, longest = output.steady_computed_tokens, output.most_steady_computed_tokens
    chunks: list[tuple[int, int]] = []
    for i, num_tokens in enumerate(scheduled):
        computed = before[i]
        if num_tokens != 1:
            chunks.append((num_tokens, computed))
        else:
            num_decodes += 1
            context += computed
            if computed > longest:
                longest = computed
        if samples[i]:
            num_sampled += 1
    return StepShape(
        output.total_num_scheduled_tokens,
        num_decodes,
        context + num_decodes,
        longest + 1 if num_decodes else 0,
        tuple([_within(window, output) for window in windows]) if windows else (),
        tuple(chunks),
        num_sampled,
        len(scheduled) + steady,
    )


def _within(window: int, output: SchedulerOutput) -> int:
    """The sum of what of its context each decode sees through a window."""
    before, seen = output.num_computed_before, 0
    for i, num_tokens in enumerate(output.num_scheduled_tokens):
        if num_tokens == 1:
            context = before[i] + 1
            seen += context if context < window else window
    return seen


def token_split(output: SchedulerOutput, shape: StepShape) -> tuple[int, int, int]:
    """Tokens of the step by kind: decode, prefill, and recomputed after a preemption. They add up to all."""
    recomputed = output.num_recomputed_tokens
    decodes = shape.num_decodes
    if recomputed:
        columns = zip(output.requests, output.num_scheduled_tokens, output.num_computed_before, strict=True)
        decodes -= sum(n == 1 and before < request.high_water_tokens for request, n, before in columns)
    return decodes, shape.num_tokens - decodes - recomputed, recomputed
