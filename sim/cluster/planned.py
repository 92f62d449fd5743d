"""A replica that sleeps through steady decode: plan the turns of the step loop, sleep once, commit them.

While nothing changes, an engine in steady decode repeats itself: how long each of the coming steps takes is
known from running sums. So the replica works out the times of as many steps as it is sure of, sleeps to the
end of the last, and then lets the engine take them all at once. A request that enters meanwhile cuts the plan
short: it ends with the step under way then. Whoever looks at the engine first has the steps committed that
have ended by now and the next one begun. Times are the ones of single steps, added one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator
from operator import itemgetter

from simpy import Event

from scheduler import Request
from sim.cluster.clock import Alarm, late_alarm
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
    _sleeps_until_s = 0.0
    """Without a plan: when the process wakes, whatever comes; 0 or a time gone by if it may wake sooner."""
    is_alone = False
    """Whether there is no other replica: then the next event of the clock is likely to be an arrival here."""

    def run(self) -> Generator[Event, object, None]:
        """The SimPy process: as the plain one, but for the plans."""
        env, engine, in_flight = self._env, self._engine, self._in_flight
        while True:
            if len(in_flight) == self._depth - 1 and self._make_plan():
                plan = self._plan
                assert plan is not None
                if not env.skip_to(plan.ends_s):
                    yield self._set_alarm(plan)
                    plan = self._plan
                if plan is not None:
                    self._finish_plan(plan)
                else:  # somebody looked: all is committed but the update of the turn under way then
                    self._take_in()
                    self._update(in_flight.popleft())
                continue
            scheduled = len(in_flight) < self._depth and engine.has_work() and self._schedule(env.now)
            if scheduled and len(in_flight) < self._depth:
                now = env.now
                delay_s = self._until_host_is_free_s(now)
                if not env.skip_to(now + delay_s):
                    self._sleeps_until_s = now + delay_s
                    yield env.timeout(delay_s)
                    self._take_in()
            elif in_flight:
                now = env.now
                delay_s = self._until_update_s(now)
                if not env.skip_to(now + delay_s):
                    self._sleeps_until_s = now + delay_s
                    yield env.timeout(delay_s)
                    self._take_in()
                self._update(in_flight.popleft())
            elif self._waits():
                yield self._idle()
                self._wake_up = None

    # --- planning ---------------------------------------------------------------------------------------

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

    def submit(self, request: Request) -> None:
        """See `Replica.submit`."""
        plan, enters_s = self._plan, self._entry_s()
        if request.needs_grammar or enters_s >= (self._sleeps_until_s if plan is None else plan.ends_s):
            self._submit(request, enters_s)
            return
        self._note(request)
        if plan is None:
            self._entering.append((enters_s, request))
        else:
            self._cut(plan, enters_s, request)

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
            self._set_alarm(plan)
            cut_off, plan.entering = plan.entering, []
            self._let_enter(plan, cut_off)
        entering = plan.entering
        if entering and entering[-1][0] > enters_s:
            insort(entering, (enters_s, request), key=_time)
        else:
            entering.append((enters_s, request))

    def _let_enter(self, plan: Plan | None, entering: list[tuple[float, Request]]) -> None:
        """Requests that enter before the plan's end are kept by it; the others enter by themselves."""
        for enters_s, request in entering:
            if plan is not None and enters_s < plan.ends_s:
                plan.entering.append((enters_s, request))
            elif enters_s <= self._env.now:
                self._add(request)
            else:
                late_alarm(self._env, enters_s, request).callbacks.append(self._enter)

    def _take_in(self) -> None:
        """Requests that entered while the process slept: nobody has looked since."""
        if self._entering:
            for _, request in self._entering:
                self._add(request)
            self._entering.clear()

    def settle(self) -> None:
        """See `Replica.settle`."""
        plan, now = self._plan, self._env.now
        if plan is None:
            if self._entering:
                entering, self._entering = self._entering, []
                self._let_enter(None, entering)
            return
        complete = bisect_right(plan.update_s, now)
        self._drop(plan, complete)
        if complete < plan.last:
            plan.last = complete
            self._set_alarm(plan)
            self._sleeps_until_s = plan.ends_s

    def stop(self) -> None:
        """See `Replica.stop`."""
        if self._plan is not None:
            self._drop(self._plan, bisect_left(self._plan.update_s, self._env.now))
        self.settle()
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
