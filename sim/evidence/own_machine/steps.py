"""The steps of a recording as a cost model sees them: their shapes, and how long each kept the engine busy.

The time of a step runs from when the engine began with it, which is the moment at which the output of the
step before came, or that of its own scheduling after an idle stretch, to the moment its own output came. So
whatever the host does between two steps is in it, as it is in the time between two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from cost_models import StepShape
from scheduler.release import release
from sim.errors import input_error
from sim.recordings import RecordedStep, Recording, StepScheduled, StepUpdated
from sim.values import Floats

SHORT_CHUNKS_TOKENS, LONG_CHUNKS_TOKENS = 512, 2048


class Drafting(NamedTuple):
    """Requests that get drafts after a step: how many, their contexts in all, and the longest, in tokens."""

    num_requests: int
    context_tokens: int
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step with its measured time.

    begin_s: when the engine began with it, from the start of the recording. seconds: until its output came.
    host_lead_s: how long before `begin_s` the host could begin to prepare it (0 unless it schedules ahead).
    next_lead_s: the same of the step after it, if that was in flight before this one's output came: the host
    looks at no output before it has prepared that one; -inf if it was not.
    next_requests: requests in that step.
    token_lead_s: in a pipeline that schedules ahead, how long before `begin_s` the tokens were there that the
    decodes need; inf elsewhere.
    """

    shape: StepShape
    drafting: Drafting
    num_drafts: int
    begin_s: float
    seconds: float
    host_lead_s: float
    next_lead_s: float
    next_requests: int
    token_lead_s: float
    after_idle: bool

    @property
    def kind(self) -> str:
        """What a table groups it by: decodes by batch size, prefills by tokens, both, drafts."""
        shape = self.shape
        chunks = sum(chunk for chunk, _ in shape.prefill_chunks)
        if self.num_drafts:
            return "drafts and prefill" if chunks else f"drafts, batch {_band(shape.num_decodes)}"
        if not chunks:
            return f"decode, batch {_band(shape.num_decodes)}"
        if chunks <= SHORT_CHUNKS_TOKENS:
            size = f"up to {SHORT_CHUNKS_TOKENS} tokens"
        elif chunks <= LONG_CHUNKS_TOKENS:
            size = f"up to {LONG_CHUNKS_TOKENS:,} tokens"
        else:
            size = f"above {LONG_CHUNKS_TOKENS:,} tokens"
        return f"{'decode and prefill' if shape.num_decodes else 'prefill'}, {size}"

    @property
    def is_decode_only(self) -> bool:
        """Whether it has nothing but decodes of one token each."""
        return not self.shape.prefill_chunks and not self.num_drafts


def _band(count: int) -> str:
    """The batch sizes that a table takes together: 1, 2, 3 to 4, 5 to 8, …"""
    top = 1 << max(count - 1, 0).bit_length()
    low = top // 2 + 1
    return str(top) if low >= top else f"{low}-{top}"


def kind_order(kind: str) -> tuple[int, int, str]:
    """Sorts kinds for a table: decodes by batch size, then prefills by tokens, both, drafts."""
    order = ("decode,", "prefill", "decode and", "drafts,", "drafts and")
    rank = next(i for i, start in enumerate(order) if kind.startswith(start))
    digits = "".join(letter for letter in kind.split("-")[0] if letter.isdigit())
    return rank, int(digits or 0) + kind.count("above"), kind


def timed_steps(recording: Recording, windows: Sequence[int] = ()) -> list[TimedStep]:
    """The steps whose output came while the recording ran, in the order of their outputs.

    `windows`: the model's attention windows in tokens. InputError if no step has a time.
    """
    updated = _in_order(recording)
    if not any(step.update_start_s > step.schedule_start_s for step in updated if step.update_start_s):
        raise input_error("has no times of steps", where=str(recording.path))
    host_from_s, token_s = _host_begins(recording), _tokens_come(recording)
    found: list[TimedStep] = []
    last: RecordedStep | None = None
    for step, follower in zip(updated, [*updated[1:], None], strict=True):
        assert step.update_start_s is not None
        begin_s, after_idle = step.schedule_start_s, True
        if last is not None and last.update_start_s is not None and _was_busy(last, step):
            begin_s, after_idle = last.update_start_s, False
        last = step
        if not step.request_ids or step.update_start_s <= begin_s:
            continue
        next_lead_s, next_requests = -inf, 0
        if follower is not None and follower.schedule_start_s < step.update_start_s:
            next_lead_s = begin_s - host_from_s[follower.index]
            next_requests = len(follower.request_ids)
        shape, drafting = _shape(step, windows)
        found.append(
            TimedStep(
                shape=shape,
                drafting=drafting,
                num_drafts=sum(step.drafts.values()),
                begin_s=begin_s,
                seconds=step.update_start_s - begin_s,
                host_lead_s=max(begin_s - host_from_s[step.index], 0.0),
                next_lead_s=next_lead_s,
                next_requests=next_requests,
                token_lead_s=begin_s - token_s[step.index] if shape.num_decodes else inf,
                after_idle=after_idle,
            )
        )
    return found


def _in_order(recording: Recording) -> list[RecordedStep]:
    calls = recording.calls
    return [recording.steps[call.index] for call in calls if isinstance(call, StepUpdated)]


def _was_busy(last: RecordedStep, step: RecordedStep) -> bool:
    """Whether the engine had something to do all the while between the output of `last` and that of
    `step`.
    """
    assert last.update_start_s is not None
    if step.schedule_start_s <= last.update_start_s:
        return True
    return last.after_update is not None and last.after_update.num_running > 0


def _host_begins(recording: Recording) -> dict[int, float]:
    """By step, when the host could begin with it: at the output before it, if the engine was busy and has
    scheduled nothing else since; else at its own scheduling.
    """
    begins: dict[int, float] = {}
    last: RecordedStep | None = None
    is_next, in_flight = False, 0
    for call in recording.calls:
        if isinstance(call, StepScheduled):
            step = recording.steps[call.index]
            begins[call.index] = step.schedule_start_s
            if is_next and last is not None and (in_flight or _was_busy(last, step)):
                begins[call.index] = last.update_start_s or 0.0
            is_next, in_flight = False, in_flight + 1
        elif isinstance(call, StepUpdated):
            is_next, in_flight = True, in_flight - 1
            last = recording.steps[call.index]
    return begins


def _tokens_come(recording: Recording) -> list[float]:
    """By step, when the tokens came that its decodes need, which may be in flight when it is scheduled.

    They are of the call before it, or of as many calls before it as there are stages where decodes are
    spaced. Only a pipeline has to wait for them.
    """
    settings, steps = recording.settings, recording.steps
    stages = settings.pipeline_parallel
    if stages is None or stages == 1 or not settings.config.get("async_sched"):
        return [-inf] * len(steps)
    calls_back = stages if release(recording.release).rules.pipelines_space_decodes else 1
    came_s = [-inf]
    for step in steps:
        came_s.append(came_s[-1])
        if step.request_ids and step.update_start_s is not None:
            came_s[-1] = step.update_start_s
    return [came_s[max(index + 1 - calls_back, 0)] for index in range(len(steps))]


def _shape(step: RecordedStep, windows: Sequence[int]) -> tuple[StepShape, Drafting]:
    """The step as the simulation would hand it to the cost model."""
    columns = np.array([step.num_scheduled_tokens, step.num_computed_before, step.num_sampled_tokens])
    tokens, before, samples = columns[0], columns[1], columns[2] > 0
    drafts = step.drafts
    verified = np.array([drafts.get(request, 0) for request in step.request_ids]) if drafts else 0 * tokens
    is_decode = tokens - verified == 1
    reach = before + tokens
    contexts = reach[is_decode]
    chunks = tuple((int(t), int(b)) for t, b in zip(tokens[~is_decode], before[~is_decode], strict=True))
    shape = StepShape(
        num_tokens=int(tokens.sum()),
        num_decodes=int(is_decode.sum()),
        decode_context_tokens=int(contexts.sum()),
        max_decode_context_tokens=int(contexts.max(initial=0)),
        window_context_tokens=tuple(int(np.minimum(contexts, window).sum()) for window in windows),
        prefill_chunks=chunks,
        num_sampled=int((samples * (1 + verified)).sum()),
        num_requests=len(tokens),
    )
    drafting = (reach - verified)[samples]
    return shape, Drafting(len(drafting), int(drafting.sum()), int(drafting.max(initial=0)))


def seconds_of(steps: Sequence[TimedStep]) -> Floats:
    """The measured times."""
    return np.array([step.seconds for step in steps])
