"""A replica that sleeps through steady decode: plan the steps, sleep once, commit them.

While nothing changes, an engine in steady decode repeats itself: how long each of the coming steps takes is
known from running sums. So the replica works out the times of as many steps as it is sure of, sleeps to the
end of the last, and then lets the engine take them all at once. Whoever puts something into the engine
meanwhile, or looks at it, first has the steps committed that have ended by now and the next one begun; the
rest of the plan is dropped, and the sleep is cut short. Times are the ones of single steps, added one after
the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator

from simpy import Event

from cost_models import StepCost
from sim.cluster.clock import Alarm
from sim.cluster.replica import BOUND_INDEX, Batch, Replica

_FEWEST_STEPS = 2
_REACH = (16, 1024)


class Plan:
    """Coming turns of the step loop: in each a batch is scheduled, then the oldest batch in flight ends.

    Lists have one value a turn: when its batch is scheduled, when the GPU begins and ends it, when the host
    and the GPU are free again, which term binds it, and when the turn's update is (the next begins then).
    """

    __slots__ = ("bound", "end_s", "entry_s", "host_free_s", "scheduled_s", "start_s", "update_s")

    def __init__(self) -> None:
        self.scheduled_s: list[float] = []
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self.entry_s: list[float] = []
        self.host_free_s: list[float] = []
        self.update_s: list[float] = []
        self.bound: list[str] = []


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
                yield self._sleep()
                self._finish_plan()
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

    def _make_plan(self) -> bool:
        """Work out the coming turns, if there are any to be sure of."""
        steps = self._engine.steps_ahead(self._reach)
        if steps < _FEWEST_STEPS:
            return False
        plan = self._plan = Plan()
        num_decodes, context, longest = self._engine.steady_sums()
        now, host_free_s = self._env.now, self._host_free_s
        entry_s, end_s = self._gpu.entry_s, self._gpu.last_end_s
        ends = [batch.end_s for batch in self._in_flight]
        for i in range(steps):
            context += num_decodes
            longest += 1
            cost: StepCost = self._timer.decode_step(num_decodes, context, longest)
            plan.scheduled_s.append(now)
            plan.start_s.append(now if now > entry_s else entry_s)
            host_free_s = (now if now > host_free_s else host_free_s) + cost.host_s
            begins_s = host_free_s if host_free_s > entry_s else entry_s
            entry_s = begins_s + cost.stage_s
            end_s = max(begins_s + cost.gpu_s, end_s + cost.stage_s)
            ends.append(end_s)
            now += max(ends[i] - now, host_free_s - now, 0.0)
            plan.end_s.append(end_s)
            plan.entry_s.append(entry_s)
            plan.host_free_s.append(host_free_s)
            plan.update_s.append(now)
            plan.bound.append(cost.bound)
        return True

    def _sleep(self) -> Event:
        assert self._plan is not None
        self._alarm = Alarm(self._env, self._plan.update_s[-1])
        return self._alarm

    def _finish_plan(self) -> None:
        """The sleep is over: all turns but the last are complete, and the last is at its update."""
        plan = self._plan
        if plan is not None:
            self._plan = None
            self._reach = min(2 * self._reach, _REACH[1])
            self._commit(plan, len(plan.update_s) - 1)

    def settle(self) -> None:
        """See `Replica.settle`: commit what has ended, begin what has begun, and let only that end."""
        plan = self._plan
        if plan is None:
            return
        self._plan = None
        complete = bisect_right(plan.update_s, self._env.now)
        self._reach = max(2 * complete, _REACH[0])
        last = len(plan.update_s) - 1
        self._commit(plan, complete)
        if complete < last:
            assert self._alarm is not None
            assert self._alarm.callbacks is not None
            alarm = Alarm(self._env, plan.update_s[complete])
            assert alarm.callbacks is not None
            alarm.callbacks += self._alarm.callbacks
            self._alarm.callbacks.clear()
            self._alarm = alarm

    def stop(self) -> None:
        """See `Replica.stop`."""
        plan = self._plan
        if plan is not None:
            self._plan = None
            self._commit(plan, bisect_left(plan.update_s, self._env.now))
        super().stop()

    def _commit(self, plan: Plan, complete: int) -> None:
        """Let the engine take the complete turns, record them, and begin the turn after them."""
        if complete:
            self._take(plan, complete)
            self._gpu.entry_s, self._gpu.last_end_s = plan.entry_s[complete - 1], plan.end_s[complete - 1]
            self._host_free_s = plan.host_free_s[complete - 1]
        self._schedule(plan.scheduled_s[complete])

    def _take(self, plan: Plan, complete: int) -> None:
        engine, kv, in_flight = self._engine, self._engine.kv_cache, self._in_flight
        used, cached = kv.num_used_blocks, kv.num_cached_free_blocks
        num_steady, num_running, num_waiting = engine.num_steady, engine.num_running, engine.num_waiting
        taken, evicted = engine.advance(complete)
        append = self._steps.append
        output = in_flight[-1].output if in_flight else None
        for i in range(complete):
            used += taken[i]
            cached -= evicted[i]
            row = (
                num_steady,
                0,
                0,
                num_running,
                num_waiting,
                used,
                cached,
                self._unrecorded_preemptions,
                BOUND_INDEX[plan.bound[i]],
            )
            self._unrecorded_preemptions = 0
            if output is None:
                append((plan.start_s[i], plan.update_s[i], *row))
            else:
                in_flight.append(
                    Batch(output, output, plan.scheduled_s[i], plan.start_s[i], plan.end_s[i], row)
                )
                ended = in_flight.popleft()
                append((ended.start_s, plan.update_s[i], *ended.row))
        self._guard.on_step(engine, gave_tokens=True)
