"""A link between two memories: transfers go one after another, each at the link's full bandwidth."""

from __future__ import annotations


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
