"""What a recording holds, as frozen values: the calls of a scheduler in order, and its steps.

Times are seconds since the start of the recording; lengths are tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from sim.values import Json

ClassRun: TypeAlias = tuple[int, int]
"""`(first class, number of blocks)`: blocks whose classes are consecutive numbers."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it came, and what had become of it when the recording ended.

    `prompt_classes` are the classes of the prompt's full blocks. `num_outputs` are tokens appended over its
    whole life, `finish_reason` is None while it runs. `not_replayed` says why a replay cannot follow it.
    """

    request_id: int
    time_s: float
    arrival_s: float
    num_prompt_tokens: int
    max_tokens: int
    prompt_classes: tuple[ClassRun, ...] = ()
    min_tokens: int = 0
    priority: int = 0
    client_index: int = 0
    lora: int = 0
    skips_cache: bool = False
    needs_grammar: bool = False
    is_session: bool = False
    tie: float = 0.0
    """Sorts as the engine's own ids do, among requests of equal arrival time."""
    not_replayed: str | None = None
    num_outputs: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """A request comes."""

    time_s: float
    request_id: int


@dataclass(frozen=True, slots=True)
class SessionInputCame:
    """The next input of a streaming session comes; `num_tokens` None: its end."""

    time_s: float
    request_id: int
    num_tokens: int | None = None
    max_tokens: int = 0
    arrival_s: float = 0.0
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Requests are ended from outside, in this order; `status` is vLLM's name."""

    time_s: float
    request_ids: tuple[int, ...]
    status: str
    held: tuple[int, ...] = ()
    """Those whose blocks the KV connector keeps for a while."""


@dataclass(frozen=True, slots=True)
class CacheReset:
    """The prefix cache is reset: `ok` True, False or "error"; `preempts`: running requests are preempted."""

    time_s: float
    preempts: bool
    ok: bool | str


@dataclass(frozen=True, slots=True)
class Paused:
    """Scheduling is paused: 0 not at all, 1 nothing new, 2 nothing."""

    time_s: float
    level: int


@dataclass(frozen=True, slots=True)
class ClassesKnown:
    """From block `first_block` on, a request's full blocks have these classes and no others."""

    request_id: int
    first_block: int
    classes: tuple[ClassRun, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts wait to be verified: `(request id, number)`."""

    num_drafts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StepScheduled:
    """`schedule()` of step `index` runs."""

    index: int


@dataclass(frozen=True, slots=True)
class StepUpdated:
    """`update_from_output()` of step `index` runs."""

    index: int


RecordedEvent: TypeAlias = Added | SessionInputCame | Ended | CacheReset | Paused
"""What came from outside."""

Call: TypeAlias = RecordedEvent | ClassesKnown | Drafted | StepScheduled | StepUpdated


class ScheduledRequest(NamedTuple):
    """One request in a step: its tokens in the step, those computed before, and whether the model gave it
    tokens (False also while the step's output is not known).
    """

    request_id: int
    num_tokens: int
    num_computed_before: int
    samples: bool


class QueueState(NamedTuple):
    """Running and waiting requests and free KV blocks."""

    num_running: int
    num_waiting: int
    num_free_blocks: int


class StepOutput(NamedTuple):
    """What a request got in a step: tokens that the scheduler appended, and why it ended, if it did."""

    request_id: int
    num_tokens: int
    finish_reason: str | None


class ConnectorAnswer(NamedTuple):
    """The KV connector's word on a lookup: tokens (None: ask again), and whether it loads in background."""

    request_id: int
    num_tokens: int | None
    asynchronous: bool


class ConnectorReport(NamedTuple):
    """What the connector reported with a step's output."""

    received: tuple[int, ...]
    sent: tuple[int, ...]
    invalid_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step. The times of an update are None if the recording ends before it.

    `request_ids`, `num_scheduled_tokens`, `num_computed_before` and `num_sampled_tokens` (tokens from the
    model, accepted drafts included, before any stop) are columns with an entry a scheduled request.
    """

    index: int
    schedule_start_s: float
    schedule_end_s: float
    request_ids: array[int]
    num_scheduled_tokens: array[int]
    num_computed_before: array[int]
    after_schedule: QueueState
    drafts: Mapping[int, int] = field(default_factory=dict)
    """Drafts to be verified, by request."""
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    """Requests that the step reports as finished since the step before."""
    grammars_ready: tuple[int, ...] = ()
    answers: tuple[ConnectorAnswer, ...] = ()
    blocks_crc: int = 0
    update_start_s: float | None = None
    update_end_s: float | None = None
    num_sampled_tokens: array[int] = field(default_factory=lambda: array("i"))
    outputs: tuple[StepOutput, ...] = ()
    """Only those that are not simply all the request's sampled tokens, without an end."""
    report: ConnectorReport | None = None
    held: tuple[int, ...] = ()
    """Requests that ended, and whose blocks the connector keeps for a while."""
    after_update: QueueState | None = None
    not_replayed: str | None = None
    """Why a replay cannot follow the step."""
    step_time_s: float | None = None
    """How long the engine was busy with the step: from the end of its `schedule()`, or, with other batches in
    flight before it, from the start of the update before, to the start of its own update.
    """

    @property
    def scheduled(self) -> tuple[ScheduledRequest, ...]:
        """The scheduled requests, in the scheduler's order."""
        sampled = self.num_sampled_tokens or [0] * len(self.request_ids)
        columns = (self.request_ids, self.num_scheduled_tokens, self.num_computed_before, sampled)
        return tuple(
            ScheduledRequest(request_id, tokens, before, count > 0)
            for request_id, tokens, before, count in zip(*columns, strict=True)
        )


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """What the recorded engine was told. `config` has the words of recorded cases."""

    config: Mapping[str, Json]
    model: str | None = None
    dtype: str | None = None
    gpu: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    enforce_eager: bool = False
    hash_lookahead_tokens: int = 0
    not_replayed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording: its calls in order, and by number its requests and steps.

    `ending` says how it ends: why it was closed, "gap: …" where records were lost, "cut off" where the file
    stops in the middle.
    """

    path: Path
    release: str
    scheduler: str
    patched: bool
    settings: RecordingSettings
    requests: tuple[RecordedRequest, ...]
    calls: tuple[Call, ...]
    steps: tuple[RecordedStep, ...]
    ending: str

    @property
    def events(self) -> tuple[RecordedEvent, ...]:
        """What came from outside, in order."""
        return tuple(call for call in self.calls if isinstance(call, RecordedEvent))
