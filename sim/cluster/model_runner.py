"""The pretended model: the only place that knows how long each answer will be, and which drafts are right.

The scheduler must decide without that knowledge, as an engine does: it learns of an answer's end when it sees
the EOS token. Whether a draft is right depends on the text at that place, not on when the step happens to
run. So every place of every answer has a number of its own between 0 and 1, and as many drafts are right
there as the cumulated acceptance rates that the number lies below: two runs under different policies see the
same luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Final, Protocol

import numpy as np

from cost_models import StepCost, StepShape
from scheduler import EOS_TOKEN_ID, Request, SchedulerOutput
from sim.cluster.step_shape import StepTimer

NEVER: Final = 1 << 62


class ModelRunner:
    """Samples tokens for all replicas, for the requests that it was told of.

    An answer's tokens are consecutive ids, so that a later prompt can continue it; its last token is the EOS,
    unless `ignore_eos`: answers then run to max_tokens, which is their length.
    """

    def __init__(self, *, ignore_eos: bool) -> None:
        self._ignore_eos = ignore_eos
        self._answers: dict[int, tuple[int, int]] = {}

    def expect(self, request_id: int, output_tokens: int, output_start: int) -> None:
        """A request arrives: the true length of its answer, EOS included, and the id of its first token."""
        self._answers[request_id] = (output_tokens - 1, output_start)

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        del self._answers[request_id]

    def steady_tokens(self, request: Request) -> int:
        """How many tokens of an answer under way come before its EOS; see `scheduler.cohort.Forecast`."""
        last, _ = self._answers[request.request_id]
        return NEVER if self._ignore_eos else last - request.num_output_tokens

    def sample(self, output: SchedulerOutput) -> list[list[int]]:
        """New tokens of each scheduled request in scheduled order; none where the step ends amid a prompt.

        To be called when the step ends: the next token follows those appended by then. A request that ended
        while the step was in flight gets none.
        """
        answers, never_ends, samples = self._answers, self._ignore_eos, output.samples
        sampled: list[list[int]] = []
        for i, request in enumerate(output.requests):
            answer = answers.get(request.request_id) if samples[i] else None
            if answer is None:
                sampled.append([])
                continue
            position = request.num_output_tokens
            last, start = answer
            sampled.append([start + position if position < last or never_ends else EOS_TOKEN_ID])
        return sampled

    def _token(self, request_id: int, position: int) -> int:
        """The token at a position of an answer; from its end on, EOS."""
        last, start = self._answers[request_id]
        return start + position if position < last or self._ignore_eos else EOS_TOKEN_ID


_MASK = (1 << 64) - 1


class Acceptance:
    """Luck of drafts. `rates[i]`: chance that draft i is right if all before it are. `rng`: its stream."""

    def __init__(self, rates: Sequence[float], rng: np.random.Generator) -> None:
        self.num_drafts = len(rates)
        self._cumulated = [rate * 2.0**64 for rate in accumulate(rates, mul)]
        self._key = int(rng.integers(1 << 64, dtype=np.uint64))

    def num_right(self, request_id: int, position: int) -> int:
        """How many drafts for the output tokens from `position` on are right, of as many as there are rates.

        The number of a place is a SplitMix64 hash of it (Steele, Lea and Flood 2014).
        """
        x = self._key + request_id * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 & _MASK
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
        x ^= x >> 31
        right = 0
        for chance in self._cumulated:
            if x >= chance:
                break
            right += 1
        return right


class SpeculativeModelRunner(ModelRunner):
    """Hands out one token more than drafts are right; counts, by position, the drafts that were.

    Everything behind an EOS is EOS; the engine cuts it.
    """

    def __init__(self, *, ignore_eos: bool, acceptance: Acceptance) -> None:
        super().__init__(ignore_eos=ignore_eos)
        self.num_verified = 0
        """How many times drafts were verified."""
        self.accepted_by_position = [0] * acceptance.num_drafts
        self._acceptance = acceptance

    def sample(self, output: SchedulerOutput) -> list[list[int]]:
        """New tokens of each scheduled request: one, and one more for each draft that is right.

        Dummy drafts, with which an admission is padded, are never right.
        """
        sampled = super().sample(output)
        drafts = output.scheduled_spec_decode_tokens
        if not drafts:
            return sampled
        admitted = {*output.new, *output.resumed}
        for request, tokens in zip(output.requests, sampled, strict=True):
            count = drafts.get(request.request_id, 0) if tokens and request not in admitted else 0
            if count:
                self.num_verified += 1
                position = request.num_output_tokens
                right = min(self._acceptance.num_right(request.request_id, position), count)
                for i in range(right):
                    self.accepted_by_position[i] += 1
                    tokens.append(self._token(request.request_id, position + i + 1))
        return sampled


@dataclass(frozen=True, slots=True, eq=False)
class SpeculationSpec:
    """How an engine speculates: how lucky its drafts are, in all replicas alike, and who makes them."""

    acceptance: Acceptance
    drafter: DraftModel


def make_model_runner(spec: SpeculationSpec | None, *, ignore_eos: bool) -> ModelRunner:
    """The model of all replicas."""
    if spec is None:
        return ModelRunner(ignore_eos=ignore_eos)
    return SpeculativeModelRunner(ignore_eos=ignore_eos, acceptance=spec.acceptance)


class DraftModel(Protocol):
    """Who drafts, as far as the clock is concerned."""

    def draft_s(self, shape: StepShape, num_drafting: int, context_tokens: int, longest: int) -> float:
        """Seconds of drafting after a step of this shape.

        `num_drafting` requests get drafts; their contexts sum up to `context_tokens`, the longest is
        `longest`.
        """


DraftsByBatch = tuple[tuple[int, int, int], ...]
"""`(first, last, drafts)`: how many drafts follow steps of so many requests."""


def _num_drafts_after(shape: StepShape, usual: int, by_batch: DraftsByBatch) -> int:
    """Drafts a request after a step."""
    fitting = (drafts for first, last, drafts in by_batch if first <= shape.num_requests <= last)
    return next(fitting, usual)


@dataclass(frozen=True, slots=True)
class FixedDrafter:
    """Every drafted token takes the same time, however many requests there are."""

    num_drafts: int
    pass_s: float
    by_batch: DraftsByBatch = ()

    def draft_s(self, shape: StepShape, num_drafting: int, context_tokens: int, longest: int) -> float:
        """One pass for each draft."""
        return _num_drafts_after(shape, self.num_drafts, self.by_batch) * self.pass_s


@dataclass(frozen=True, slots=True)
class ModelDrafter:
    """A model of its own drafts: first a pass over all tokens of the step, which its KV cache needs as the
    target's does, and then one pass over one token a request for every further draft.
    """

    timer: StepTimer
    num_drafts: int
    by_batch: DraftsByBatch = ()

    def draft_s(self, shape: StepShape, num_drafting: int, context_tokens: int, longest: int) -> float:
        """The GPU's time for all passes."""
        first = StepShape(
            num_tokens=shape.num_tokens,
            num_decodes=shape.num_decodes,
            decode_context_tokens=shape.decode_context_tokens,
            max_decode_context_tokens=shape.max_decode_context_tokens,
            prefill_chunks=shape.prefill_chunks,
            num_sampled=num_drafting,
            num_requests=shape.num_requests,
        )
        seconds = self.timer.step(first).gpu_s
        if not num_drafting:
            return seconds
        for _ in range(_num_drafts_after(shape, self.num_drafts, self.by_batch) - 1):
            context_tokens += num_drafting
            longest += 1
            seconds += self.timer.decode_step(num_drafting, context_tokens, longest).gpu_s
        return seconds


def time_speculative_step(
    timer: StepTimer, drafter: DraftModel, output: SchedulerOutput, windows: Sequence[int]
) -> tuple[StepCost, tuple[int, int, int]]:
    """What verification and the drafting after it cost, and the tokens by kind: decode, prefill, recomputed.

    A request that verifies drafts is a decode: its tokens attend to one context, read once.
    """
    drafts = output.scheduled_spec_decode_tokens
    decodes: list[int] = []
    contexts: list[int] = []
    windowed = [0] * len(windows)
    chunks: list[tuple[int, int]] = []
    rows = decode_tokens = 0
    columns = zip(
        output.requests, output.num_scheduled_tokens, output.num_computed_before, output.samples, strict=True
    )
    for request, scheduled, before, samples in columns:
        verified = drafts.get(request.request_id, 0)
        if scheduled - verified == 1:
            decodes.append(before + scheduled)
            for i, window in enumerate(windows):
                windowed[i] += min(before + scheduled, window)
            if before >= request.high_water_tokens:
                decode_tokens += scheduled
        else:
            chunks.append((scheduled, before))
        if samples:
            rows += 1 + verified
            contexts.append(before + scheduled - verified)
    shape = StepShape(
        num_tokens=output.total_num_scheduled_tokens,
        num_decodes=len(decodes),
        decode_context_tokens=sum(decodes),
        max_decode_context_tokens=max(decodes, default=0),
        window_context_tokens=tuple(windowed),
        prefill_chunks=tuple(chunks),
        num_sampled=rows,
        num_requests=len(output.requests),
    )
    cost = timer.step(shape)
    draft_s = drafter.draft_s(shape, len(contexts), sum(contexts), max(contexts, default=0))
    cost = StepCost(cost.gpu_s + draft_s, cost.host_s, cost.bound, cost.stage_s + draft_s)
    recomputed = output.num_recomputed_tokens
    return cost, (decode_tokens, shape.num_tokens - decode_tokens - recomputed, recomputed)
