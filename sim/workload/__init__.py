"""Workloads: when requests arrive, how long they are, what they share, from distributions or from traces."""

from sim.workload.build import build_workload
from sim.workload.table import Client, Limits, RequestTable, Workload

__all__ = ["Client", "Limits", "RequestTable", "Workload", "build_workload"]
