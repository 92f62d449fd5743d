"""Readers of request traces in the forms in which they are published, with every fault named by its line."""

from sim.workload.traces.read import TraceWindow, read_trace
from sim.workload.traces.rows import TraceRows

__all__ = ["TraceRows", "TraceWindow", "read_trace"]
