"""Waiting orders, that is who is admitted first when there is room; and all policies by their names.

An order gives each request a key; the smallest goes first. Two orders are no matter of a single request and
have queues of their own (`scheduler.waiting`): `FcfsOrder`, where the place in the queue decides, and
`fair.FairOrder`, where the service that a whole client has had does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from scheduler.policies.fair import FairOrder
from scheduler.policies.victim import (
    FcfsTail,
    FewestGenerated,
    LeastComputed,
    LowestPriority,
    MostBlocksFreed,
    ShortestRemaining,
)
from scheduler.policies.view import RequestView

SortKey = tuple[float | str, ...]


class WaitingOrder(Protocol):
    """Orders the waiting queue: the request with the smallest key is admitted first."""

    def key(self, request: RequestView) -> SortKey:
        """A sort key. If it changes while the request waits, a heap does not notice at once."""
        ...


class PriorityOrder:
    """vLLM's priority policy: smaller priority, earlier arrival, then the id as text ("10" < "9")."""

    def key(self, request: RequestView) -> tuple[int, float, str]:
        """Priority, arrival time, id as text."""
        return (request.priority, request.arrival_time, str(request.request_id))


@dataclass(frozen=True, slots=True)
class AgedPriorityOrder:
    """Priority that improves by one for every `aging_s` seconds of age, so that nobody starves.

    Everybody ages at the same pace: who is ahead does not change with time, and the key needs no clock.
    `priority - (now - arrival_time) / aging_s` orders as `arrival_time + priority * aging_s` does.
    """

    aging_s: float

    def __post_init__(self) -> None:
        if not self.aging_s > 0:
            raise ValueError(f"aging_s must be above 0, not {self.aging_s}")

    def key(self, request: RequestView) -> tuple[float, int, float, int]:
        """Priority and age in one number; of equals the more important, then the earlier."""
        aged = request.arrival_time + request.priority * self.aging_s
        return (aged, request.priority, request.arrival_time, request.request_id)


class ShortestJobFirst:
    """Fewest expected output tokens to come first, by each request's length guess; those without go last."""

    def key(self, request: RequestView) -> tuple[float, float, int]:
        """Expected tokens to come; of equals the earlier."""
        remaining = request.expected_remaining_tokens
        expected = float("inf") if remaining is None else remaining
        return (expected, request.arrival_time, request.request_id)


class FcfsOrder:
    """vLLM's default: first come, first served; a preempted request goes to the front."""


VICTIM_POLICIES: dict[str, type] = {
    "fcfs_tail": FcfsTail,
    "priority": LowestPriority,
    "least_computed": LeastComputed,
    "most_blocks_freed": MostBlocksFreed,
    "fewest_generated": FewestGenerated,
    "shortest_remaining": ShortestRemaining,
}

WAITING_ORDERS: dict[str, type] = {
    "fcfs": FcfsOrder,
    "priority": PriorityOrder,
    "aged_priority": AgedPriorityOrder,
    "shortest_job_first": ShortestJobFirst,
    "fair": FairOrder,
}


class UnknownPolicyError(ValueError):
    """No policy has that name; the message lists those there are."""


def policy_class(registry: Mapping[str, type], kind: str) -> type:
    """The class registered as `kind`; `UnknownPolicyError` names those there are."""
    if kind in registry:
        return registry[kind]
    near = get_close_matches(kind, registry, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise UnknownPolicyError(f"no policy '{kind}'; known are {', '.join(registry)}{hint}")
