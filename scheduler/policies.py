"""Who goes first and who has to go: the two choices of a scheduler that are worth exchanging.

Each is an object with one method. The defaults are vLLM's; an engine takes others by argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.request import Request


class WaitingOrder(Protocol):
    """Orders the waiting queue: the request with the smallest key is admitted first."""

    def key(self, request: Request) -> tuple[Any, ...]:
        """A sort key; it may change while the request waits, the queue then notices as a heap would: not at
        once.
        """
        ...


class VictimPolicy(Protocol):
    """Chooses who is preempted when a running request finds no free blocks."""

    def choose(self, running: Sequence[Request], needy: Request) -> int:
        """Index into `running` of the victim. `needy` is the request that lacks blocks; it may be chosen
        itself.
        """
        ...


class PriorityOrder:
    """vLLM's priority policy: smaller priority, then earlier arrival, then the id compared as text ("10" <
    "9").
    """

    def key(self, request: Request) -> tuple[int, float, str]:
        """See the class."""
        return (request.priority, request.arrival_time, str(request.request_id))


class LastAdmitted:
    """vLLM's victim under FCFS: the last of the running list."""

    def choose(self, running: Sequence[Request], needy: Request) -> int:
        """See the class."""
        return len(running) - 1


class LowestPriority:
    """vLLM's victim under the priority policy: largest (priority, arrival time), the earliest in the list of
    equals.
    """

    def choose(self, running: Sequence[Request], needy: Request) -> int:
        """See the class."""
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_time))
