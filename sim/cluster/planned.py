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
from itertools import islice
from operator import itemgetter

from simpy import Event

from scheduler import Request
from sim.cluster.clock import Alarm, late_alarm
from sim.cluster.replica import BOUND_INDEX, Batch, Replica

_time = itemgetter(0)
_REACH = (16, 1024)


Turn = tuple[float, float, float, float, float, str]
"""One turn of the step loop: a batch is scheduled, then the oldest batch in flight ends.

When the batch is scheduled, when the GPU begins and ends it, and when the GPU and the host can take the
next (all in s); which term binds it.
"""


class Plan:
    """Coming turns, and when the update of each is (the next begins then). The last is number `last`.

    `entering`: requests that enter the engine before the end, and when.
    """

    __slots__ = ("entering", "last", "num_waiting", "turns", "update_s")

    def __init__(self, num_waiting: int) -> None:
        self.turns: list[Turn] = []
        self.update_s: list[float] = []
        self.last = -1
        self.num_waiting = num_waiting
        self.entering: list[tuple[float, Request]] = []


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
                batch = in_flight.popleft()
                yield env.timeout(max(batch.end_s - env.now, self._host_free_s - env.now, 0.0))
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
        plan = self._plan = Plan(self._engine.num_waiting)
        note_turn, note_update = plan.turns.append, plan.update_s.append
        num_decodes, context, longest = self._engine.steady_sums()
        costs = self._timer.decode_run(num_decodes, context + num_decodes, longest + 1)
        now, host_free_s = self._env.now, self._host_free_s
        entry_s, end_s = self._gpu.entry_s, self._gpu.last_end_s
        ends = deque([batch.end_s for batch in self._in_flight])
        for gpu_s, host_s, bound, stage_s in islice(costs, num_turns):
            start_s = now if now > entry_s else entry_s
            host_free_s = (now if now > host_free_s else host_free_s) + host_s
            begins_s = host_free_s if host_free_s > entry_s else entry_s
            entry_s = begins_s + stage_s
            end_s = max(begins_s + gpu_s, end_s + stage_s)
            ends.append(end_s)
            note_turn((now, start_s, end_s, entry_s, host_free_s, bound))
            now += max(ends.popleft() - now, host_free_s - now, 0.0)
            note_update(now)
        plan.last = num_turns - 1
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
        plan, enters_s = self._plan, self._env.now + self._front_end_s
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
        self._schedule(plan.turns[complete][0])
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
        engine, kv, in_flight = self._engine, self._engine.kv_cache, self._in_flight
        used, cached = kv.num_used_blocks, kv.num_cached_free_blocks
        num_steady, num_running, num_waiting = engine.num_steady, engine.num_running, plan.num_waiting
        taken, evicted = engine.advance(num_turns)
        preemptions, self._unrecorded_preemptions = self._unrecorded_preemptions, 0
        rows: list[tuple[float, tuple[int, ...]]] = [(batch.start_s, batch.row) for batch in in_flight]
        for (_, start_s, _, _, _, bound), blocks, lost in zip(plan.turns, taken, evicted, strict=False):
            used += blocks
            cached -= lost
            counts = (num_steady, 0, 0, num_running, num_waiting, used, cached, preemptions)
            rows.append((start_s, (*counts, BOUND_INDEX[bound])))
            preemptions = 0
        scheduled_s, begins_s, end_s, self._gpu.entry_s, self._host_free_s, _ = plan.turns[num_turns - 1]
        self._gpu.last_end_s = end_s
        output = engine.unfold()
        num_ended = num_turns if output is None else num_turns - 1
        ended: list[float] = []
        for (start_s, row), update_s in zip(rows[:num_ended], plan.update_s, strict=False):
            ended += (start_s, update_s, *row)
        self._steps.extend(ended)
        if in_flight:  # scheduling ahead: the last batch is under way now
            flying = in_flight.popleft().output
            in_flight.append(Batch(flying, flying, scheduled_s, begins_s, end_s, rows[-1][1]))
        self._guard.on_step(engine, gave_tokens=True)
        if output is not None:
            start_s, row = rows[num_ended]
            self._update(Batch(output, output, scheduled_s, start_s, plan.update_s[num_ended], row))
