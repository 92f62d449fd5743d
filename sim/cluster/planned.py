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

from cost_models import DecodeRun
from scheduler import Request, SchedulerOutput, StepRun
from sim.cluster.clock import Alarm
from sim.cluster.recorder import StepCounts, StepLog
from sim.cluster.replica import Batch, Replica

_time = itemgetter(0)
_REACH = (16, 1024)


class Plan:
    """Coming turns of the step loop. In each a batch is scheduled, then the oldest batch in flight ends.

    One entry a turn: when the GPU begins and ends the batch, when the GPU and the host can take the next,
    which term binds it (a place in `BOUNDS`), and when the turn's update is (the next turn begins then; the
    first at `begins_s`). The last turn is number `last`.
    """

    __slots__ = (
        "begins_s",
        "bounds",
        "end_s",
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
        self.entry_s = self.end_s
        self.host_free_s: list[float] = []
        self.bounds = bounds
        self.update_s: list[float] = []
        self.last = len(bounds) - 1
        self.num_waiting = num_waiting

    @property
    def ends_s(self) -> float:
        """When the last turn ends."""
        return self.update_s[self.last]

    def scheduled_s(self, turn: int) -> float:
        """When the batch of a turn is scheduled."""
        return self.update_s[turn - 1] if turn else self.begins_s

    def fill(self, gpu_s: list[float], host_s: float, host_free_s: float, gpu_free_s: float) -> None:
        """Times of one batch after the other on one GPU, from when host and GPU are free on."""
        now = self.begins_s
        for one_s in gpu_s:
            self.start_s.append(now if now > gpu_free_s else gpu_free_s)
            host_free_s = (now if now > host_free_s else host_free_s) + host_s
            self.host_free_s.append(host_free_s)
            gpu_free_s = (host_free_s if host_free_s > gpu_free_s else gpu_free_s) + one_s
            self.end_s.append(gpu_free_s)
            until_end_s, until_free_s = gpu_free_s - now, host_free_s - now
            if until_free_s > until_end_s:
                until_end_s = until_free_s
            if until_end_s > 0.0:
                now += until_end_s
            self.update_s.append(now)

    def fill_ahead(
        self,
        run: DecodeRun,
        in_flight_end_s: list[float],
        host_free_s: float,
        entry_s: float,
        end_s: float,
        *,
        waits_for_tokens: bool,
    ) -> None:
        """Times of batches scheduled while others are in flight, on one GPU or in the stages of a pipeline.

        `in_flight_end_s`: when those end, s. `entry_s`, `end_s`: as in `servers.GpuQueue`. Where a batch
        waits for the tokens of the one before, it begins at that one's end.
        """
        now, host_s, ends = self.begins_s, run.host_s, in_flight_end_s
        self.entry_s = []
        for turn, gpu_s in enumerate(run.gpu_s):
            stage_s = run.stage_s[turn]
            if waits_for_tokens:
                entry_s = end_s
            self.start_s.append(now if now > entry_s else entry_s)
            host_free_s = (now if now > host_free_s else host_free_s) + host_s
            self.host_free_s.append(host_free_s)
            begins_s = host_free_s if host_free_s > entry_s else entry_s
            entry_s = begins_s + stage_s
            self.entry_s.append(entry_s)
            leaves_s, passes_s = begins_s + gpu_s, end_s + stage_s
            end_s = leaves_s if leaves_s > passes_s else passes_s
            self.end_s.append(end_s)
            ends.append(end_s)
            until_end_s, until_free_s = ends[turn] - now, host_free_s - now
            if until_free_s > until_end_s:
                until_end_s = until_free_s
            if until_end_s > 0.0:
                now += until_end_s
            self.update_s.append(now)


class PlannedSteps:
    """The batches of a plan's turns as they are recorded, behind those that were in flight before it.

    In every turn `num_running` requests run, and each gets a token. `run` has the blocks of each turn.
    Preemptions not yet recorded go to the first turn.
    """

    def __init__(self, plan: Plan, num_running: int, run: StepRun, preemptions: int) -> None:
        self.plan = plan
        self.num_running = num_running
        self.used_blocks = run.used_blocks
        self.cached_blocks = run.cached_blocks
        self.preemptions = preemptions

    def record(self, log: StepLog, flying: list[Batch], num_ended: int) -> None:
        """Record the first batches: each ends with the update of a turn."""
        plan, shift = self.plan, len(flying)
        for place in range(min(shift, num_ended)):
            log.append(flying[place].start_s, plan.update_s[place], flying[place].row)
        first, end = 0, max(num_ended - shift, 0)
        if self.preemptions and end:
            log.append(plan.start_s[0], plan.update_s[shift], self._row(0))
            first = 1
        log.extend_decodes(
            plan.start_s[first:end],
            plan.update_s[first + shift : end + shift],
            self.used_blocks[first:end],
            self.cached_blocks[first:end],
            plan.bounds[first:end],
            (self.num_running, self.num_running, plan.num_waiting),
        )

    def batch(self, flying: list[Batch], number: int, output: SchedulerOutput) -> Batch:
        """One of them, as the replica keeps it; `number` counts those in flight before the plan too."""
        turn = number - len(flying)
        if turn < 0:
            batch = flying[number]
            return Batch(output, batch.scheduled_s, batch.start_s, batch.end_s, batch.row)
        plan = self.plan
        return Batch(output, plan.scheduled_s(turn), plan.start_s[turn], plan.end_s[turn], self._row(turn))

    def _row(self, turn: int) -> StepCounts:
        running, waiting = self.num_running, self.plan.num_waiting
        used, cached, bound = self.used_blocks[turn], self.cached_blocks[turn], self.plan.bounds[turn]
        preemptions = 0 if turn else self.preemptions
        return (running, 0, 0, running, waiting, used, cached, preemptions, bound)


class PlannedReplica(Replica):
    """A replica that sleeps through steady decode; the times of its steps are the same bit for bit."""

    _plan: Plan | None = None
    _alarm: Event | None = None
    _reach = _REACH[0]
    _turn_s = 0.0
    is_alone = False
    """Whether there is no other replica: then the next event of the clock is likely to be an arrival here."""

    # --- planning ---------------------------------------------------------------------------------------

    def _plan_ahead(self) -> Event | None:
        """Plan the coming turns, if there are any to be sure of: the event at which they are over.

        Turns during which nothing else is to happen need no event: they are over at once.
        """
        while True:
            plan = self._make_plan()
            if plan is None:
                return None
            if not self._env.skip_to(plan.ends_s):
                return self._set_alarm(plan)
            self._end_plan()

    def _make_plan(self) -> Plan | None:
        if len(self._in_flight) != self._depth - 1:
            return None
        engine = self._engine
        if not engine.is_steady:
            return None
        steps = engine.look_ahead(self._turns_to_plan())
        if steps is None:
            return None
        context = steps.num_computed_tokens + steps.num_requests
        run = self._timer.decode_run(
            steps.num_requests, context, steps.most_computed_tokens + 1, steps.num_steps
        )
        plan = self._plan = Plan(self._env.now, engine.num_waiting, run.bounds)
        if self._depth == 1:
            plan.fill(run.gpu_s, run.host_s, self._host_free_s, self._gpu.entry_s)
        else:
            ends = [batch.end_s for batch in self._in_flight]
            entry_s, end_s = self._gpu.entry_s, self._gpu.last_end_s
            plan.fill_ahead(run, ends, self._host_free_s, entry_s, end_s, waits_for_tokens=self._decodes_wait)
        return plan

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
