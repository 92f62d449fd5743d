"""A replica that sleeps through steady decode: plan the turns of the step loop, sleep once, commit them.

While nothing changes, an engine in steady decode repeats itself: how long each of the coming steps takes is
known from running sums. So the replica works out the times of as many steps as it is sure of, sleeps to the
end of the last, and then lets the engine take them all at once. A request that enters meanwhile cuts the plan
short: it ends with the step under way then. Whoever looks at the engine first has the steps committed that
have ended by now and the next one begun. Times are the ones of single steps, added one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf
from operator import itemgetter

from simpy import Event

from scheduler import Request
from sim.cluster.clock import Alarm
from sim.cluster.plan import Plan, PlannedSteps
from sim.cluster.replica import Replica

_time = itemgetter(0)
_REACH = (16, 1024)


class PlannedReplica(Replica):
    """See the module. Takes what `Replica` takes; the times of its steps are the same bit for bit."""

    _plan: Plan | None = None
    _alarm: Event | None = None
    _reach = _REACH[0]
    _turn_s = 0.0
    is_alone = False
    """Whether there is no other replica: then the next event of the clock is likely to be an arrival here."""

    # --- planning ---------------------------------------------------------------------------------------

    def _plan_ahead(self) -> Event | None:
        """Plan the coming turns, if there are any to be sure of: the event at which they are over."""
        if len(self._in_flight) != self._depth - 1 or not self._make_plan():
            return None
        assert self._plan is not None
        return self._set_alarm(self._plan)

    def _make_plan(self) -> bool:
        """Work out the coming turns, if there are any to be sure of."""
        engine = self._engine
        if not engine.is_steady:
            return False
        steps = engine.look_ahead(self._turns_to_plan())
        if steps is None:
            return False
        context = steps.num_computed_tokens + steps.num_requests
        run = self._timer.decode_run(
            steps.num_requests, context, steps.most_computed_tokens + 1, steps.num_steps
        )
        plan = self._plan = Plan(self._env.now, engine.num_waiting, run.bounds)
        if self._depth == 1:
            plan.fill(run.gpu_s, run.host_s, self._host_free_s, self._gpu.entry_s)
        else:
            ends = [batch.end_s for batch in self._in_flight]
            plan.fill_ahead(run, ends, self._host_free_s, self._gpu.entry_s, self._gpu.last_end_s)
        return True

    def _turns_to_plan(self) -> int:
        """As many turns as will probably be taken: more are lost if a request cuts the plan short."""
        if self.is_alone and self._turn_s:
            turns = (self._env.until_next_event_s() + self._front_end_s) / self._turn_s
            return int(turns) + 2 if turns < _REACH[1] else _REACH[1]
        return self._reach

    def _set_alarm(self, plan: Plan) -> Event:
        """Wake at the end of the plan; an earlier alarm hands its sleeper over."""
        alarm = Alarm(self._env, plan.ends_s)
        if self._alarm is not None and not self._alarm.processed:
            assert alarm.callbacks is not None
            alarm.callbacks += self._alarm.callbacks
            self._alarm.callbacks.clear()
        self._alarm = alarm
        return alarm

    # --- what cuts a plan short -------------------------------------------------------------------------

    def _enter_at(self, request: Request, enters_s: float) -> None:
        """Let a request enter at that time: by an event of its own, or before the process wakes."""
        plan = self._plan
        if request.needs_grammar or enters_s >= (self._wakes_s if plan is None else plan.ends_s):
            super()._enter_at(request, enters_s)
        elif plan is None:
            self._entering.append((enters_s, request))
        else:
            self._cut_short(plan, enters_s, request)

    def _enter(self, request: Request) -> None:
        """A request enters now; with a plan the engine learns of it at the end of the turn under way."""
        if request.needs_grammar:
            self.settle()  # its grammar is asked for now, not at the end of a turn
        if self._plan is not None:
            self._cut_short(self._plan, self._env.now, request)
        else:
            super()._enter(request)

    def _cut_short(self, plan: Plan, enters_s: float, request: Request) -> None:
        """A request enters before the plan's end: the plan ends with the turn under way then."""
        turn = bisect_right(plan.update_s, enters_s)
        if turn < plan.last:
            self._reach = max(2 * turn, _REACH[0])
            plan.last = turn
            self._set_alarm(plan)
            self._release_entering(from_s=plan.ends_s)
        entering = self._entering
        if entering and entering[-1][0] > enters_s:
            insort(entering, (enters_s, request), key=_time)
        else:
            entering.append((enters_s, request))

    def _release_entering(self, from_s: float) -> None:
        """Who was to enter while the process sleeps, but enters at `from_s` or later, enters by an event."""
        entering, self._entering = self._entering, []
        for enters_s, request in entering:
            if enters_s < from_s:
                self._entering.append((enters_s, request))
            else:
                super()._enter_at(request, enters_s)

    def settle(self) -> None:
        """Commit the turns that have ended by now, begin the one under way, and let the others go."""
        plan, now = self._plan, self._env.now
        if plan is None:
            self._release_entering(from_s=-inf)
            return
        complete = bisect_right(plan.update_s, now)
        self._give_up(plan, complete)
        if complete < plan.last:
            plan.last = complete
            self._set_alarm(plan)
            self._wakes_s = plan.ends_s

    def stop(self) -> None:
        """The clock has stopped: what has not happened by now does not happen."""
        if self._plan is not None:
            self._give_up(self._plan, bisect_left(self._plan.update_s, self._env.now))
        self.settle()
        super().stop()

    def _give_up(self, plan: Plan, complete: int) -> None:
        """Commit the complete turns, begin the one after them, and let go of the rest."""
        self._plan = None
        self._commit(plan, complete)
        self._schedule(plan.scheduled_s(complete))
        self._release_entering(from_s=-inf)

    # --- commit -----------------------------------------------------------------------------------------

    def _end_plan(self) -> None:
        """The sleep is over: all turns are complete, and somebody may have ended in the last."""
        plan = self._plan
        if plan is None:  # somebody looked: all is committed but the update of the turn under way then
            self._enter_all()
            self._update(self._in_flight.popleft())
            return
        self._plan = None
        turns = plan.last + 1
        if turns == len(plan.update_s):
            self._reach = min(2 * self._reach, _REACH[1])
        self._commit(plan, turns)
        self._enter_all()

    def _commit(self, plan: Plan, num_turns: int) -> None:
        """Let the engine take so many turns, and record them."""
        if not num_turns:
            return
        engine, flying = self._engine, list(self._in_flight)
        num_running = engine.num_running
        run = engine.advance(num_turns)
        output = run.output
        steps = PlannedSteps(plan, num_running, run, self._unrecorded_preemptions)
        self._unrecorded_preemptions = 0
        self._gpu.entry_s, self._gpu.last_end_s = plan.entry_s[num_turns - 1], plan.end_s[num_turns - 1]
        self._host_free_s = plan.host_free_s[num_turns - 1]
        self._turn_s = plan.update_s[0] - plan.begins_s
        num_ended = num_turns if output is None else num_turns - 1
        steps.record(self._steps, flying, num_ended)
        if flying:  # scheduling ahead: the last batches are under way now
            self._in_flight.clear()
            for i, batch in enumerate(flying):
                self._in_flight.append(steps.batch(flying, num_turns + i, batch.output))
        self._guard.on_step(engine, gave_tokens=True)
        if output is not None:
            self._update(steps.batch(flying, num_ended, output))
