"""When a replica's GPUs start and end a batch: one server in order, or the stages of a pipeline."""

from __future__ import annotations

from cost_models import StepCost


class GpuQueue:
    """The GPUs of one replica work off batches in order.

    `entry_s` is from when on they can take the next batch: the end of the one before, or with a pipeline the
    moment when its first stage is free; `last_end_s` is when the latest batch leaves.
    """

    def __init__(self) -> None:
        self.entry_s = 0.0
        self.last_end_s = 0.0

    def run(self, ready_s: float, cost: StepCost) -> float:
        """Take a batch whose inputs are ready at `ready_s`; return when it ends.

        In a pipeline a short batch cannot overtake a long one: it leaves at least one stage time after it.
        """
        start_s = ready_s if ready_s > self.entry_s else self.entry_s
        self.entry_s = start_s + cost.stage_s
        self.last_end_s = max(start_s + cost.gpu_s, self.last_end_s + cost.stage_s)
        return self.last_end_s
