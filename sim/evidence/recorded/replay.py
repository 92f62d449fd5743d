"""Plays a recording on this engine: the same calls in the same order, each step's decisions compared.

The model and the KV connector answer as recorded. What a step is compared by stands in `_after_schedule` and
`_after_update`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from scheduler import (
    EngineCore,
    ExternalMatch,
    FinishReason,
    KVReport,
    Request,
    SchedulerOutput,
    SessionInput,
)
from scheduler.release import Release
from sim.errors import Fault, InputError
from sim.evidence.conform.case import ConfigScript
from sim.evidence.conform.replay import kv_cache_config, scheduler_config
from sim.evidence.recorded.texts import LaterPrompt, Texts
from sim.recordings import (
    Added,
    CacheReset,
    Drafted,
    Ended,
    Paused,
    QueueState,
    RecordedStep,
    Recording,
    SessionInputCame,
    StepScheduled,
    StepUpdated,
)
from sim.recordings.writer import blocks_checksum
from sim.values import Json

_OF_OUTPUT = {"repetition": "stop"}
"""Reasons that are a stop to the scheduler."""


@dataclass(frozen=True, slots=True)
class StepDifference:
    """A step that came out differently: in what, `(name, recorded, replayed)`."""

    index: int
    values: tuple[tuple[str, Json, Json], ...]
    error: str | None = None
    """What this engine raised, if it did not get through the step."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a recording could be followed: `identical` steps, then a difference, or the end.

    `refused`: what came next cannot be followed, and why.
    """

    identical: int
    difference: StepDifference | None = None
    refused: str | None = None


class Differs(Exception):  # noqa: N818  # an outcome, not an error
    """The step is not as recorded."""

    def __init__(self, difference: StepDifference) -> None:
        super().__init__()
        self.difference = difference


class Refused(Exception):  # noqa: N818
    """A replay cannot follow what comes."""


def replay(recording: Recording, release: Release, *, most_steps: int | None = None) -> Replayed:
    """Follow a recording under the rules of `release` to its first difference, its end or `most_steps`.

    `InputError` if its settings are none that an engine can have.
    """
    try:
        play = _Play(recording, release)
    except (
        NotImplementedError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        told = f"no engine can be made as it says ({type(error).__name__}: {error})"
        raise InputError([Fault(str(recording.path), None, told)]) from None
    try:
        for number, call in enumerate(recording.calls):
            if most_steps is not None and play.identical >= most_steps:
                break
            play.texts.now = number
            play.apply(call)
    except Differs as found:
        return Replayed(play.identical, found.difference)
    except Refused as found:
        return Replayed(play.identical, refused=str(found))
    except (
        NotImplementedError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AssertionError,
        RuntimeError,
    ) as error:
        told = f"{type(error).__name__}: {error}"
        return Replayed(play.identical, StepDifference(play.next_step, (), told))
    return Replayed(play.identical)


class _Play:
    """A recording under way."""

    def __init__(self, recording: Recording, release: Release) -> None:
        self.recording = recording
        self.identical = 0
        self.next_step = 0
        config = cast(ConfigScript, recording.settings.config)
        self._ids = _ids(recording)
        self._numbers = {request_id: number for number, request_id in enumerate(self._ids)}
        self._connector = _RecordedConnector(self._ids) if config.get("connector", False) else None
        limits, kv_cache = scheduler_config(config), kv_cache_config(config)
        self.engine = EngineCore(
            limits,
            kv_cache,
            connector=self._connector,
            release=release,
            most_in_flight=max(limits.batches_in_flight(release.rules), _most_in_flight(recording)),
            names_everybody=True,
        )
        lookahead = recording.settings.hash_lookahead_tokens
        self.texts = Texts(recording, kv_cache.hash_block_size, lookahead)
        self._requests: dict[int, Request] = {}
        self._in_flight: dict[int, SchedulerOutput] = {}
        self._latest: SchedulerOutput | None = None
        self._preempted_by_reset: set[int] = set()
        self._different: list[tuple[str, Json, Json]] = []
        """Of what has happened since the last step."""
        self._to_update: deque[int] = deque()

    def apply(self, call: object) -> None:
        """The next call."""
        engine = self.engine
        match call:
            case StepScheduled(index):
                self._schedule(self.recording.steps[index])
            case StepUpdated(index):
                self._update(self.recording.steps[index])
            case Added(_, request_id):
                self._add(request_id)
            case Ended(_, request_ids, _, held):
                self._hold(held)
                engine.abort_requests([self._ids[number] for number in request_ids])
            case SessionInputCame():
                self._continue(call)
            case Drafted(num_drafts):
                if self._latest is not None:
                    given = dict(num_drafts)
                    requests = self._latest.requests
                    engine.propose_drafts(
                        self._latest, [given.get(self._numbers[r.request_id], 0) for r in requests]
                    )
            case CacheReset(_, preempts, ok):
                self._reset(preempts, ok)
            case Paused(_, level):
                engine.pause(level)
            case _:
                pass  # classes are known to the texts

    # --- requests ---------------------------------------------------------------------------------------

    def _add(self, request_id: int) -> None:
        recorded = self.recording.requests[request_id]
        if recorded.not_replayed:
            raise Refused(f"request {request_id}: {recorded.not_replayed}")
        request = Request(
            self._ids[request_id],
            self.texts.ranges(request_id, 0, recorded.num_prompt_tokens),
            recorded.max_tokens,
            arrival_time=recorded.arrival_s,
            priority=recorded.priority,
            client_index=recorded.client_index,
            min_tokens=recorded.min_tokens,
            ignore_eos=True,
            lora_name=f"adapter {recorded.lora}" if recorded.lora else None,
            skip_reading_prefix_cache=recorded.skips_cache,
            needs_grammar=recorded.needs_grammar,
            resumable=recorded.is_session,
        )
        self._requests[request_id] = request
        self.engine.add_request(request)

    def _continue(self, call: SessionInputCame) -> None:
        """A session goes on, or ends."""
        request = self._requests[call.request_id]
        if call.num_tokens is None:
            self.engine.submit_input(request.request_id, None)
            return
        count = call.num_tokens

        def prompt() -> list[tuple[int, int]]:
            all_but_one = self.engine.release.rules.merge_keeps_all_but_the_last_token
            kept = (
                request.num_tokens - 1
                if all_but_one
                else min(request.num_computed_tokens, request.num_tokens)
            )
            return self.texts.continuation(call.request_id, kept, kept + count)

        given = SessionInput(LaterPrompt(prompt), call.max_tokens, call.arrival_s, call.min_tokens)
        self.engine.submit_input(request.request_id, given)

    def _reset(self, preempts: bool, recorded: bool | str) -> None:
        ok, preempted = self.engine.reset_prefix_cache(preempt_running=preempts)
        self._preempted_by_reset.update(self._numbers_of(preempted))
        self._compare("prefix cache reset", recorded, ok if ok or not preempts else "error")

    # --- steps ------------------------------------------------------------------------------------------

    def _schedule(self, step: RecordedStep) -> None:
        if step.not_replayed:
            raise Refused(f"step {step.index}: {step.not_replayed}")
        self.next_step = step.index
        engine = self.engine
        if self._connector is not None:
            self._connector.expect(step)
        for number in step.grammars_ready:
            engine.grammar_ready(self._ids[number])
        known = {
            request.request_id: [len(table) for table in request.block_tables] for request in engine.running
        }
        output = engine.schedule()
        self._in_flight[step.index] = output
        self._after_schedule(step, output, known)
        if self._different:
            raise Differs(StepDifference(step.index, tuple(self._different)))
        if step.update_start_s is None:  # the recording ends before it
            self.identical += 1

    def _after_schedule(
        self, step: RecordedStep, output: SchedulerOutput, known: dict[int, list[int]]
    ) -> None:
        compare = self._compare
        self._compare_rows(
            "scheduled [request, tokens, computed before]",
            [[each.request_id, each.num_tokens, each.num_computed_before] for each in step.scheduled],
            [
                [number, tokens, before]
                for number, tokens, before in zip(
                    self._numbers_of(output.requests),
                    output.num_scheduled_tokens,
                    output.num_computed_before,
                    strict=True,
                )
            ],
        )
        preempted = set(self._numbers_of(output.preempted))
        told = set(step.preempted)
        if not preempted <= told or not told - preempted <= self._preempted_by_reset:
            compare("preempted", sorted(told), sorted(preempted))
        self._preempted_by_reset.clear()
        compare(
            "reported as finished",
            list(step.finished),
            sorted(self._numbers[i] for i in output.finished_req_ids),
        )
        self._compare_rows(
            "drafts [request, number]",
            [[request_id, count] for request_id, count in step.drafts.items()],
            [
                [self._numbers[request.request_id], output.scheduled_spec_decode_tokens[request.request_id]]
                for request in output.requests
                if request.request_id in output.scheduled_spec_decode_tokens
            ],
        )
        compare("queues after scheduling", step.after_schedule._asdict(), self._queues()._asdict())
        compare(
            "blocks handed out (checksum)", step.blocks_crc, blocks_checksum(self._new_blocks(output, known))
        )

    def _update(self, step: RecordedStep) -> None:
        self.next_step = step.index
        output = self._in_flight.pop(step.index)
        counts = dict(zip(step.request_ids, step.num_sampled_tokens, strict=True))
        told = {each.request_id: each for each in step.outputs}
        report = None
        self._hold(step.held)
        if self._connector is not None and step.report is not None:
            received, sent, bad = step.report
            report = KVReport([self._ids[i] for i in received], [self._ids[i] for i in sent], bad)

        def sample(planned: SchedulerOutput) -> list[list[int]]:
            tokens = []
            for request in planned.requests:
                request_id, first = self._numbers[request.request_id], request.num_tokens
                count = 0 if request.is_finished else counts.get(request_id, 0)
                of_request = [self.texts.token(request_id, first + i) for i in range(count)]
                if request_id in told and _is_stop(told[request_id].finish_reason) and of_request:
                    last = of_request[max(told[request_id].num_tokens - 1, 0)]
                    request.stop_token_ids |= {last}
                tokens.append(of_request)
            return tokens

        outputs = self.engine.update(output, sample, report)
        self._latest = output
        recorded: dict[int, list[Json]] = {
            request_id: [count, None]
            for request_id, count in counts.items()
            if count and request_id not in told
        }
        for each in step.outputs:
            if each.num_tokens or each.finish_reason:
                recorded[each.request_id] = [
                    each.num_tokens,
                    _OF_OUTPUT.get(str(each.finish_reason), each.finish_reason),
                ]
        replayed: dict[int, list[Json]] = {
            self._numbers[request.request_id]: [count, None if reason is None else reason.value]
            for request, count, reason in outputs.entries
        }
        self._compare_outputs(recorded, replayed)
        if step.after_update is not None:
            self._compare("queues after the update", step.after_update._asdict(), self._queues()._asdict())
        if self._different:
            raise Differs(StepDifference(step.index, tuple(self._different)))
        self.identical += 1

    def _compare_outputs(self, recorded: dict[int, list[Json]], replayed: dict[int, list[Json]]) -> None:
        if recorded != replayed:
            ids = [i for i in sorted({*recorded, *replayed}) if recorded.get(i) != replayed.get(i)]
            self._compare(
                "outputs [request, tokens, finish reason]",
                [[i, *recorded[i]] for i in ids if i in recorded],
                [[i, *replayed[i]] for i in ids if i in replayed],
            )

    def _new_blocks(
        self, output: SchedulerOutput, known: dict[int, list[int]]
    ) -> Iterator[tuple[int, list[Sequence[int]]]]:
        """By number of a request, the blocks handed out to it; `known` are the lengths of tables before."""
        admitted = {*output.new, *output.resumed}
        for request in output.requests:
            lengths = [0] * len(request.block_tables)
            if request not in admitted:
                lengths = known[request.request_id]
            tables = zip(request.block_tables, lengths, strict=True)
            yield self._numbers[request.request_id], [table[length:] for table, length in tables]

    def _numbers_of(self, requests: Iterable[Request]) -> list[int]:
        return [self._numbers[request.request_id] for request in requests]

    def _queues(self) -> QueueState:
        engine = self.engine
        return QueueState(engine.num_running, engine.num_waiting, engine.kv_cache.num_free_blocks)

    def _hold(self, numbers: Iterable[int]) -> None:
        """Whose blocks the connector keeps if they end in this call."""
        if self._connector is not None:
            self._connector.held = {self._ids[number] for number in numbers}

    def _compare_rows(self, name: str, recorded: Sequence[Json], replayed: Sequence[Json]) -> None:
        """Of long lists only the rows from the first to the last different one are told."""
        begin = end = 0
        shorter = min(len(recorded), len(replayed))
        while begin < shorter and recorded[begin] == replayed[begin]:
            begin += 1
        while end < shorter - begin and recorded[-1 - end] == replayed[-1 - end]:
            end += 1
        self._compare(name, recorded[begin : len(recorded) - end], replayed[begin : len(replayed) - end])

    def _compare(self, name: str, recorded: Json, replayed: Json) -> None:
        if recorded != replayed:
            self._different.append((name, recorded, replayed))


class _RecordedConnector:
    """A KV connector that answers as recorded."""

    def __init__(self, ids: list[int]) -> None:
        self.held: set[int] = set()
        self._ids = ids
        self._answers: dict[int, deque[ExternalMatch | None]] = {}

    def expect(self, step: RecordedStep) -> None:
        """The answers of a step, by request in their order."""
        self._answers = {}
        for number, tokens, asynchronous in step.answers:
            answer = None if tokens is None else ExternalMatch(tokens, asynchronous)
            self._answers.setdefault(self._ids[number], deque()).append(answer)

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        """The next answer; nothing, if it was not asked when it was recorded."""
        answers = self._answers.get(request.request_id)
        return answers.popleft() if answers else ExternalMatch(0, False)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        """Loads are reported as recorded."""

    def delays_free(self, request: Request) -> bool:
        """Whether the recorded connector kept its blocks."""
        return request.request_id in self.held


def _is_stop(reason: str | None) -> bool:
    return reason is not None and _OF_OUTPUT.get(reason, reason) == FinishReason.STOP.value


def _most_in_flight(recording: Recording) -> int:
    """How many steps the recorded engine had under way at most."""
    most = now = 0
    for call in recording.calls:
        if isinstance(call, StepScheduled):
            now += 1
            most = max(most, now)
        elif isinstance(call, StepUpdated):
            now -= 1
    return most


def _ids(recording: Recording) -> list[int]:
    """An id for each request, such that ids as text are in the order in which the engine takes requests of
    equal priority and arrival time.
    """
    ranks = {tie: rank for rank, tie in enumerate(sorted({request.tie for request in recording.requests}))}
    if len(ranks) < 2:
        return list(range(len(recording.requests)))
    rank_step, first = 10 ** len(str(len(recording.requests))), 10 ** len(str(len(ranks)))
    return [(first + ranks[request.tie]) * rank_step + request.request_id for request in recording.requests]
