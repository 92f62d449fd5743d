"""What works off one job after another: the GPUs of a replica, and a link between two memories."""

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


class Link:
    """One direction of a link. It knows when it will be free; the clock is the caller's."""

    __slots__ = ("bandwidth_bytes_per_s", "busy_s", "free_s", "num_bytes")

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.free_s = 0.0
        """From when on it is free, s."""
        self.busy_s = 0.0
        """Seconds of transfers so far."""
        self.num_bytes = 0.0
        """Bytes carried so far."""

    def carry(self, ready_s: float, num_bytes: float) -> float:
        """Transfer bytes that are ready at `ready_s`, behind what came before; returns when they are over."""
        took_s = num_bytes / self.bandwidth_bytes_per_s
        self.free_s = max(ready_s, self.free_s) + took_s
        self.busy_s += took_s
        self.num_bytes += num_bytes
        return self.free_s
