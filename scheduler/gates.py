"""What can keep a waiting request from being admitted although it is at the head of the queue.

A gate answers one question about one request: must it be passed over for now? Gates are asked in a fixed
order, and a passed-over request is set aside without blocking those behind it. The gates live with their
features: `remote_loads.RemoteLoads`, `grammar.GrammarGate`, `streaming.IdleSessionGate`,
`lora.AdapterGate`; one that belongs to scheduling ahead stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from scheduler.output import SchedulerOutput
from scheduler.request import Request


class AdmissionGate(ABC):
    """One reason to pass a waiting request over."""

    @abstractmethod
    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True: set the request aside in this pass. `output` is the step so far. May move the request to
        WAITING.
        """


class StaleOutputGate(AdmissionGate):
    """Passes over requests whose output from before a preemption is still to arrive."""

    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True while wanted output is in flight."""
        return request.num_stale_tokens > 0 and not request.drop_stale_output
