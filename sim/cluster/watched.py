"""A replica under observation: what each request waits for, and what the steps that serve it cost alone.

Nothing is decided here and no time is changed: a watched run is the same to the last bit, planned steps
included. It is for questions asked afterwards, so a run that nobody asks about pays nothing.

Of every call of `schedule()` that leaves requests waiting, one reason is kept: what ended the admissions. It
holds for the whole line until the next call, except for requests that were set aside for reasons of their
own. Of every step are kept the moments between which its time divides, and of every prompt chunk in it what
it would have cost without the rest of the step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from math import nan

from cost_models import StepCost
from scheduler import EngineCore, EngineCoreOutputs, KVReport, Request, Sampler, SchedulerOutput
from sim.cluster.model_runner import time_speculative_step
from sim.cluster.planned import Plan, PlannedReplica
from sim.cluster.replica import Batch
from sim.cluster.step_shape import time_step


class Wait(IntEnum):
    """What ended the admissions of a step.

    TOKENS: the step's token budget was used up. BLOCKS: too few KV blocks were free for the request at the
    head of the line, or running requests had to be preempted. SEQS: as many requests ran as may. HELD: a
    pause, a prefill interval, or requests that must wait for a grammar, an adapter slot or KV from outside.
    Where two hold at once, a full running list counts first: more of the other would not have helped.
    """

    TOKENS = 0
    BLOCKS = 1
    SEQS = 2
    HELD = 3


class Watch:
    """What a watched run leaves beside its recording: columns by request, and a `ReplicaWatch` each replica.

    `entered_s` is when the engine came to know of a request. Calls are counted as in `ReplicaWatch`: those
    with numbers from `first_call` to below `admission_call` left it waiting.
    """

    def __init__(self, num_requests: int) -> None:
        self.entered_s = array("d", [nan]) * num_requests
        self.first_call = array("i", [0]) * num_requests
        self.admission_call = array("i", [-1]) * num_requests
        self.stalls: dict[int, list[tuple[float, float]]] = {}
        """By request, its preemptions: see `Replica.stalls`."""
        self.replicas: list[ReplicaWatch] = []


class ReplicaWatch:
    """Columns of one replica. Times in s.

    By call that left somebody waiting: when, until when (the next call), its `Wait`, and the id of the
    request that was turned away at the head of the line (-1: none was looked at).
    By step: when it was scheduled, when the GPU had done with the batch before, when it began this one and
    when it ended it, how long its decodes alone would have taken, and whether prefills were held back in it.
    By chunk, that is by request and step in which the request computed prompt tokens or recomputed tokens:
    what the chunk costs alone, what all chunks of the step cost without its decodes, and the share of the
    chunk's tokens that had been computed before.
    """

    def __init__(self) -> None:
        self.call_s, self.call_until_s = array("d"), array("d")
        self.call_wait, self.call_head = array("b"), array("i")
        self.aside_call, self.aside_request = array("i"), array("i")
        self.scheduled_s, self.free_s, self.begin_s = array("d"), array("d"), array("d")
        self.gpu_end_s, self.decodes_s = array("d"), array("d")
        self.step_held = array("b")
        self.chunk_request, self.chunk_step = array("i"), array("i")
        self.chunk_alone_s, self.chunks_s, self.chunk_again = array("d"), array("d"), array("d")

    def close_call(self, now: float) -> None:
        """Another call is made: the reason of the last has held until now."""
        if len(self.call_until_s) < len(self.call_s):
            self.call_until_s.append(now)


class WatchedEngine(EngineCore):
    """An engine that shows every plan, also an empty one, before it is used."""

    _on_plan: Callable[[SchedulerOutput], None] | None = None
    _on_update: Callable[[SchedulerOutput], None] | None = None

    def watch(
        self,
        on_plan: Callable[[SchedulerOutput], None],
        on_update: Callable[[SchedulerOutput], None] | None = None,
    ) -> None:
        """From now on call `on_plan` with every plan, and `on_update` when its output has been applied."""
        self._on_plan, self._on_update = on_plan, on_update

    def schedule(self) -> SchedulerOutput:
        """Plan the next step, and show it."""
        output = super().schedule()
        if self._on_plan is not None:
            self._on_plan(output)
        return output

    def update(
        self, output: SchedulerOutput, sampler: Sampler, report: KVReport | None = None
    ) -> EngineCoreOutputs:
        """Apply a step's output, and tell."""
        outputs = super().update(output, sampler, report)
        if self._on_update is not None:
            self._on_update(output)
        return outputs

    def waits_for(self, output: SchedulerOutput) -> Wait | None:
        """What ended the admissions of this plan; None if nobody is left waiting."""
        if not self.num_waiting:
            return None
        if output.preempted:
            return Wait.BLOCKS
        if self.state.pause:
            return Wait.HELD
        if self.is_full:
            return Wait.SEQS
        if output.num_tokens_left <= 0:
            return Wait.TOKENS
        if output.turned_away is None:
            return Wait.HELD
        if output.lacked_blocks:
            return Wait.BLOCKS
        return Wait.HELD if output.holds_prefills else Wait.TOKENS


class WatchedReplica(PlannedReplica):
    """A replica that keeps a `ReplicaWatch`; its engine must be a `WatchedEngine`.

    It plans where the engine has a cohort.
    """

    _noted: Batch | None = None
    _planned_at_s = 0.0

    def keep(self, watch: Watch) -> None:
        """Take notes into `watch`. To be called once, before time runs, replica by replica."""
        assert isinstance(self._engine, WatchedEngine)
        self._watched = self._engine
        self._watch = watch
        self._columns = ReplicaWatch()
        watch.replicas.append(self._columns)
        self._watched.watch(self._note_plan)

    def _register(self, request: Request) -> None:
        self._watch.entered_s[request.request_id] = self._env.now + self._front_end_s
        super()._register(request)

    def _enter(self, request: Request) -> None:
        self._watch.first_call[request.request_id] = len(self._columns.call_s)
        super()._enter(request)

    def _make_plan(self) -> Plan | None:
        """A plan takes the place of the calls that its turns would make: all would find no place free."""
        plan = super()._make_plan()
        if plan is not None and plan.num_waiting:
            self._note_call(self._env.now, Wait.SEQS, -1)
        return plan

    def _commit(self, plan: Plan, num_turns: int) -> None:
        """Each turn schedules one batch of decodes."""
        columns, free_s = self._columns, self._gpu.entry_s
        for turn in range(num_turns):
            begin_s = max(plan.host_free_s[turn], free_s)
            columns.scheduled_s.append(plan.scheduled_s(turn))
            columns.free_s.append(free_s)
            columns.begin_s.append(begin_s)
            columns.gpu_end_s.append(plan.end_s[turn])
            columns.step_held.append(False)
            columns.decodes_s.append(plan.end_s[turn] - begin_s)
            free_s = plan.entry_s[turn]
        super()._commit(plan, num_turns)

    def stop(self) -> None:
        """The clock has stopped: the last call has held until now."""
        super().stop()
        self._columns.close_call(self._env.now)
        for request_id, preempted_s, resumed_s in self.stalls:
            self._watch.stalls.setdefault(request_id, []).append((preempted_s, resumed_s))

    def _note_plan(self, output: SchedulerOutput) -> None:
        """A plan has been made; nobody has used it yet."""
        watch, columns, now = self._watch, self._columns, self._planned_at_s
        columns.close_call(now)
        number = len(columns.call_s)
        for request in output.new:
            watch.admission_call[request.request_id] = number
        reason = self._watched.waits_for(output)
        if reason is None:
            return
        head = -1 if output.turned_away is None else output.turned_away.request_id
        self._note_call(now, reason, head)
        if reason is not Wait.HELD:
            for request in output.held_back:
                columns.aside_call.append(number)
                columns.aside_request.append(request.request_id)

    def _note_call(self, now: float, reason: Wait, head: int) -> None:
        """Somebody is left waiting, for this reason until the next call."""
        columns = self._columns
        columns.close_call(now)
        columns.call_s.append(now)
        columns.call_wait.append(reason)
        columns.call_head.append(head)

    def _schedule(self, now: float) -> bool:
        free_s, self._planned_at_s = self._gpu.entry_s, now
        if not super()._schedule(now):
            return False
        batch, columns = self._in_flight[-1], self._columns
        if (
            batch is self._noted or batch.is_empty
        ):  # when a load has come, a step is scheduled within the call for an empty one
            return True
        self._noted = batch
        begin_s = max(self._host_free_s, self._ready_s, free_s)
        columns.scheduled_s.append(now)
        columns.free_s.append(free_s)
        columns.begin_s.append(begin_s)
        columns.gpu_end_s.append(batch.end_s)
        columns.step_held.append(batch.output.holds_prefills)
        columns.decodes_s.append(self._note_chunks(batch.output, batch.end_s - begin_s))
        return True

    def _note_chunks(self, output: SchedulerOutput, gpu_s: float) -> float:
        """Keep the step's chunks; return what its decodes alone would cost."""
        chunks: list[int] = []
        decodes: list[int] = []
        columns = zip(output.requests, output.num_computed_before, strict=True)
        for place, (request, before) in enumerate(columns):
            is_chunk = before < request.num_prompt_tokens or before < request.high_water_tokens
            (chunks if is_chunk else decodes).append(place)
        if not chunks:
            return gpu_s
        together_s = (
            self._alone_s(output, chunks) if len(chunks) > 1 or decodes or output.num_steady else gpu_s
        )
        kept, step = self._columns, len(self._columns.scheduled_s) - 1
        for place in chunks:
            request, count = output.requests[place], output.num_scheduled_tokens[place]
            again = max(0, min(count, request.high_water_tokens - output.num_computed_before[place]))
            kept.chunk_request.append(request.request_id)
            kept.chunk_step.append(step)
            kept.chunk_alone_s.append(together_s if len(chunks) == 1 else self._alone_s(output, [place]))
            kept.chunks_s.append(together_s)
            kept.chunk_again.append(again / count)
        if not decodes and not output.num_steady:
            return 0.0
        return self._alone_s(output, decodes, steady=True)

    def _alone_s(self, output: SchedulerOutput, places: Sequence[int], *, steady: bool = False) -> float:
        """GPU seconds of a step of these requests and nobody else; `steady`: and of the cohort."""
        part = SchedulerOutput(0)
        for place in places:
            request = output.requests[place]
            part.requests.append(request)
            part.num_scheduled_tokens.append(output.num_scheduled_tokens[place])
            part.num_computed_before.append(output.num_computed_before[place])
            part.samples.append(output.samples[place])
            drafts = output.scheduled_spec_decode_tokens.get(request.request_id)
            if drafts:
                part.scheduled_spec_decode_tokens[request.request_id] = drafts
        part.total_num_scheduled_tokens = sum(part.num_scheduled_tokens)
        if steady:
            part.num_steady = output.num_steady
            part.steady_computed_tokens = output.steady_computed_tokens
            part.most_steady_computed_tokens = output.most_steady_computed_tokens
            part.total_num_scheduled_tokens += output.num_steady
        return self._cost(part).gpu_s

    def _cost(self, output: SchedulerOutput) -> StepCost:
        if self._drafter is None:
            return time_step(self._timer, output, self._windows)[0]
        return time_speculative_step(self._timer, self._drafter, output, self._windows)[0]
