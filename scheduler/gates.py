"""What can keep a waiting request from being admitted although it is at the head of the queue.

A gate answers one question about one request: must it be passed over for now? Gates are asked in a fixed
order, and a passed-over request is set aside without blocking those behind it. The gates live with their
features: `connector.RemoteLoadGate`, `grammar.GrammarGate`, `streaming.IdleSessionGate`, `lora.AdapterGate`.
"""

from __future__ import annotations

from typing import Protocol

from scheduler.output import SchedulerOutput
from scheduler.request import Request


class AdmissionGate(Protocol):
    """One reason to pass a waiting request over."""

    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True: set the request aside in this pass. `output` is the step so far. May move the request to
        WAITING.
        """
        ...
