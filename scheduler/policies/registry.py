"""Policies by the names under which a scenario asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from scheduler.policies.fair import FairOrder
from scheduler.policies.victim import (
    FcfsTail,
    FewestGenerated,
    LeastComputed,
    LowestPriority,
    MostBlocksFreed,
    ShortestRemaining,
)
from scheduler.policies.waiting_order import (
    AgedPriorityOrder,
    FcfsOrder,
    PriorityOrder,
    ShortestJobFirst,
)

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
