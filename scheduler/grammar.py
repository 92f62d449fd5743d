"""Structured output: a request waits until its grammar is compiled, and its drafts must fit the grammar."""

from __future__ import annotations

from typing import Protocol

from scheduler.gates import AdmissionGate
from scheduler.output import SchedulerOutput
from scheduler.request import Request
from scheduler.status import RequestStatus


class DraftValidator(Protocol):
    """The compiled grammars, as far as a scheduler needs them."""

    def num_valid(self, request: Request, num_drafts: int) -> int:
        """How many leading draft tokens the request's grammar accepts."""
        ...


class AcceptAll:
    """A grammar that has nothing against any draft."""

    def num_valid(self, request: Request, num_drafts: int) -> int:
        """All of them."""
        return num_drafts


class GrammarGate(AdmissionGate):
    """Passes over requests whose grammar is still being compiled; `ready` is told when one is done."""

    def __init__(self) -> None:
        self._ready: set[int] = set()

    def ready(self, request_id: int) -> None:
        """The grammar of this request can be used from now on."""
        self._ready.add(request_id)

    def is_ready(self, request: Request) -> bool:
        """Whether the request waits for its grammar in vain: it is there."""
        return request.request_id in self._ready

    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True while the grammar is not ready; then the request becomes an ordinary waiting one."""
        if request.status is not RequestStatus.WAITING_FOR_FSM:
            return False
        if request.request_id not in self._ready:
            return True
        self._ready.discard(request.request_id)
        request.move_to(RequestStatus.WAITING)
        return False
