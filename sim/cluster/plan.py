"""What a planned replica sleeps through: the times of the coming turns, and the steps they become."""

from __future__ import annotations

from cost_models import DecodeRun
from scheduler import SchedulerOutput, StepRun
from sim.cluster.replica import Batch
from sim.cluster.step_log import StepCounts, StepLog


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
        self, run: DecodeRun, in_flight_end_s: list[float], host_free_s: float, entry_s: float, end_s: float
    ) -> None:
        """Times of batches scheduled while others are in flight, on one GPU or in the stages of a pipeline.

        `in_flight_end_s`: when those end. entry_s and end_s: as in `gpu.GpuQueue`.
        """
        now, host_s, ends = self.begins_s, run.host_s, in_flight_end_s
        self.entry_s = []
        for turn, gpu_s in enumerate(run.gpu_s):
            stage_s = run.stage_s[turn]
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
