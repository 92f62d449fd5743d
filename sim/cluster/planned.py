"""A replica that sleeps through steady decode: plan the turns of the step loop, sleep once, commit them.

While nothing changes, an engine in steady decode repeats itself: how long each of the coming steps takes is
known from running sums. So the replica works out the times of as many steps as it is sure of, sleeps to the
end of the last, and then lets the engine take them all at once. A request that enters meanwhile cuts the plan
short: it ends with the step under way then. Whoever looks at the engine first has the steps committed that
have ended by now and the next one begun. Times are the ones of single steps, added one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Generator
from itertools import accumulate
from operator import itemgetter, sub

from simpy import Event

from scheduler import Request, SchedulerOutput
from sim.cluster.clock import Alarm, late_alarm
from sim.cluster.replica import Batch, Replica
from sim.recorder import StepLog

_time = itemgetter(0)
_REACH = (16, 1024)


class Plan:
    """Coming turns of the step loop. In each a batch is scheduled, then the oldest batch in flight ends.

    One entry a turn: when the GPU begins and ends the batch, when the GPU and the host can take the next,
    which term binds it (a place in `BOUNDS`), and when the turn's update is (the next turn begins then; the
    first at `begins_s`). The last turn is number `last`. `entering`: requests that enter the engine before
    the end, and when.
    """

    __slots__ = (
        "begins_s",
        "bounds",
        "end_s",
        "entering",
        "entry_s",
        "host_free_s",
        "last",
        "num_waiting",
        "start_s",
        "update_s",
    )

    def __init__(self, begins_s: float, num_waiting: int, bounds: list[int]) -> None:
        self.begins_s = begins_s
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self.entry_s: list[float] = []
        self.host_free_s: list[float] = []
        self.bounds = bounds
        self.update_s: list[float] = []
        self.last = len(bounds) - 1
        self.num_waiting = num_waiting
        self.entering: list[tuple[float, Request]] = []

    def scheduled_s(self, turn: int) -> float:
        """When the batch of a turn is scheduled."""
        return self.update_s[turn - 1] if turn else self.begins_s


class PlannedReplica(Replica):
    """See the module. Takes what `Replica` takes; the times of its steps are the same bit for bit."""

    _plan: Plan | None = None
    _alarm: Event | None = None
    _reach = _REACH[0]

    def run(self) -> Generator[Event, object, None]:
        """The SimPy process: as the plain one, but for the plans."""
        env, engine, in_flight = self._env, self._engine, self._in_flight
        while True:
            if len(in_flight) == self._depth - 1 and self._make_plan():
                yield self._set_alarm()
                if self._plan is not None:
                    self._finish_plan(self._plan)
                else:  # somebody looked: all is committed but the update of the turn under way then
                    self._update(in_flight.popleft())
                continue
            scheduled = len(in_flight) < self._depth and engine.has_work() and self._schedule(env.now)
            if scheduled and len(in_flight) < self._depth:
                yield env.timeout(max(self._host_free_s - env.now, 0.0))
            elif in_flight:
                batch = in_flight[0]
                yield env.timeout(max(batch.end_s - env.now, self._host_free_s - env.now, 0.0))
                in_flight.popleft()
                self._update(batch)
            elif self._waits():
                yield self._idle()
                self._wake_up = None

    # --- planning ---------------------------------------------------------------------------------------

    def _make_plan(self) -> bool:
        """Work out the coming turns, if there are any to be sure of."""
        num_turns = self._engine.steps_ahead(self._reach)
        if not num_turns:
            return False
        num_decodes, context, longest = self._engine.steady_sums()
        run = self._timer.decode_run(num_decodes, context + num_decodes, longest + 1, num_turns)
        now, host_s, host_free_s = self._env.now, run.host_s, self._host_free_s
        plan = self._plan = Plan(now, self._engine.num_waiting, run.bounds)
        note_start, note_end, note_entry = plan.start_s.append, plan.end_s.append, plan.entry_s.append
        note_host_free, note_update = plan.host_free_s.append, plan.update_s.append
        entry_s, end_s = self._gpu.entry_s, self._gpu.last_end_s
        ends = deque([batch.end_s for batch in self._in_flight])
        for gpu_s, stage_s in zip(run.gpu_s, run.stage_s, strict=True):
            note_start(now if now > entry_s else entry_s)
            host_free_s = (now if now > host_free_s else host_free_s) + host_s
            note_host_free(host_free_s)
            begins_s = host_free_s if host_free_s > entry_s else entry_s
            entry_s = begins_s + stage_s
            note_entry(entry_s)
            leaves_s, passes_s = begins_s + gpu_s, end_s + stage_s
            end_s = leaves_s if leaves_s > passes_s else passes_s
            note_end(end_s)
            ends.append(end_s)
            until_end_s, until_free_s = ends.popleft() - now, host_free_s - now
            if until_free_s > until_end_s:
                until_end_s = until_free_s
            if until_end_s > 0.0:
                now += until_end_s
            note_update(now)
        return True

    def _set_alarm(self) -> Event:
        """Wake at the end of the plan; an earlier alarm hands its sleeper over."""
        assert self._plan is not None
        alarm = Alarm(self._env, self._plan.update_s[self._plan.last])
        if self._alarm is not None and not self._alarm.processed:
            assert alarm.callbacks is not None
            alarm.callbacks += self._alarm.callbacks
            self._alarm.callbacks.clear()
        self._alarm = alarm
        return alarm

    # --- what cuts a plan short -------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """See `Replica.submit`."""
        plan, enters_s = self._plan, self._entry_s()
        if plan is not None and enters_s < plan.update_s[plan.last] and not request.needs_grammar:
            self._note(request)
            self._cut(plan, enters_s, request)
        else:
            super().submit(request)

    def _add(self, request: Request) -> None:
        if request.needs_grammar:
            self.settle()  # its grammar is asked for now, not at the end of a turn
        if self._plan is not None:
            self._cut(self._plan, self._env.now, request)
        else:
            super()._add(request)

    def _cut(self, plan: Plan, enters_s: float, request: Request) -> None:
        """A request enters before the plan's end: it sees the end of the turn under way then."""
        turn = bisect_right(plan.update_s, enters_s)
        if turn < plan.last:
            self._reach = max(2 * turn, _REACH[0])
            plan.last = turn
            self._set_alarm()
            entering, plan.entering = plan.entering, []
            self._let_enter(plan, entering)
        insort(plan.entering, (enters_s, request), key=_time)

    def _let_enter(self, plan: Plan | None, entering: list[tuple[float, Request]]) -> None:
        """Requests that enter before the plan's end are kept by it; the others enter by themselves."""
        for enters_s, request in entering:
            if plan is not None and enters_s < plan.update_s[plan.last]:
                plan.entering.append((enters_s, request))
            elif enters_s <= self._env.now:
                self._add(request)
            else:
                late_alarm(self._env, enters_s, request).callbacks.append(self._enter)

    def settle(self) -> None:
        """See `Replica.settle`."""
        plan, now = self._plan, self._env.now
        if plan is None:
            return
        complete = bisect_right(plan.update_s, now)
        self._drop(plan, complete)
        if complete < plan.last:
            plan.last = complete
            self._plan = plan
            self._set_alarm()
            self._plan = None

    def stop(self) -> None:
        """See `Replica.stop`."""
        if self._plan is not None:
            self._drop(self._plan, bisect_left(self._plan.update_s, self._env.now))
        super().stop()

    def _drop(self, plan: Plan, complete: int) -> None:
        """Commit the complete turns, begin the one after them, and let go of the rest."""
        self._plan = None
        self._commit(plan, complete)
        self._schedule(plan.scheduled_s(complete))
        self._let_enter(None, plan.entering)

    # --- commit -----------------------------------------------------------------------------------------

    def _finish_plan(self, plan: Plan) -> None:
        """The sleep is over: all turns are complete, and somebody may have ended in the last."""
        self._plan = None
        turns = plan.last + 1
        if turns == len(plan.update_s):
            self._reach = min(2 * self._reach, _REACH[1])
        self._commit(plan, turns)
        for _, request in plan.entering:
            self._engine.add_request(request)

    def _commit(self, plan: Plan, num_turns: int) -> None:
        """Let the engine take so many turns, and record them."""
        if not num_turns:
            return
        engine, kv, flying = self._engine, self._engine.kv_cache, list(self._in_flight)
        used, cached = kv.num_used_blocks, kv.num_cached_free_blocks
        counts = (engine.num_steady, engine.num_running, plan.num_waiting)
        taken, evicted = engine.advance(num_turns)
        steps = _Steps(
            plan,
            counts,
            list(accumulate(taken, initial=used))[1:],
            list(accumulate(evicted, sub, initial=cached))[1:],
            self._unrecorded_preemptions,
        )
        self._unrecorded_preemptions = 0
        self._gpu.entry_s, self._gpu.last_end_s = plan.entry_s[num_turns - 1], plan.end_s[num_turns - 1]
        self._host_free_s = plan.host_free_s[num_turns - 1]
        output = engine.unfold()
        num_ended = num_turns if output is None else num_turns - 1
        steps.record(self._steps, flying, num_ended)
        if flying:  # scheduling ahead: the last batches are under way now
            self._in_flight.clear()
            for i, batch in enumerate(flying):
                self._in_flight.append(steps.batch(flying, num_turns + i, batch.output))
        self._guard.on_step(engine, gave_tokens=True)
        if output is not None:
            self._update(steps.batch(flying, num_ended, output))


class _Steps:
    """The batches of a plan's turns as they are recorded, behind those that were in flight before it.

    `counts`: members of the cohort, running and waiting requests in all of them. Blocks in use, and free ones
    that can be hit, are as of each turn. Preemptions not yet recorded go to the first turn.
    """

    def __init__(
        self,
        plan: Plan,
        counts: tuple[int, int, int],
        used_blocks: list[int],
        cached_blocks: list[int],
        preemptions: int,
    ) -> None:
        self.plan = plan
        self.counts = counts
        self.used_blocks = used_blocks
        self.cached_blocks = cached_blocks
        self.preemptions = preemptions

    def record(self, log: StepLog, flying: list[Batch], num_ended: int) -> None:
        """Record the first batches: each ends with the update of a turn."""
        plan, shift = self.plan, len(flying)
        for batch, update_s in zip(flying, plan.update_s[:num_ended], strict=False):
            log.append((batch.start_s, update_s, *batch.row))
        first, end = 0, max(num_ended - shift, 0)
        if self.preemptions and end:
            log.append((plan.start_s[0], plan.update_s[shift], *self._row(0)))
            first = 1
        log.extend_decodes(
            plan.start_s[first:end],
            plan.update_s[first + shift : end + shift],
            self.used_blocks[first:end],
            self.cached_blocks[first:end],
            plan.bounds[first:end],
            self.counts,
        )

    def batch(self, flying: list[Batch], number: int, output: SchedulerOutput) -> Batch:
        """One of them, as the replica keeps it; `number` counts those in flight before the plan too."""
        turn = number - len(flying)
        if turn < 0:
            batch = flying[number]
            return Batch(output, output, batch.scheduled_s, batch.start_s, batch.end_s, batch.row)
        plan = self.plan
        return Batch(
            output, output, plan.scheduled_s(turn), plan.start_s[turn], plan.end_s[turn], self._row(turn)
        )

    def _row(self, turn: int) -> tuple[int, ...]:
        num_steady, num_running, num_waiting = self.counts
        used, cached, bound = self.used_blocks[turn], self.cached_blocks[turn], self.plan.bounds[turn]
        preemptions = 0 if turn else self.preemptions
        return (num_steady, 0, 0, num_running, num_waiting, used, cached, preemptions, bound)
