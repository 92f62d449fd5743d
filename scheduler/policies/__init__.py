"""Who goes first and who has to go: the choices of a scheduler that are worth exchanging.

Each policy is an object with one method that sees requests through read-only views (`view`) and nothing of
the future. The defaults are vLLM's; `policy_class` finds the others by name.
"""

from scheduler.policies.fair import FairOrder
from scheduler.policies.victim import (
    FcfsTail,
    FewestGenerated,
    LeastComputed,
    LowestPriority,
    MostBlocksFreed,
    PreemptionMode,
    Recompute,
    ShortestRemaining,
    VictimPolicy,
)
from scheduler.policies.view import RequestView, RunningView, VictimView
from scheduler.policies.waiting_order import (
    VICTIM_POLICIES,
    WAITING_ORDERS,
    AgedPriorityOrder,
    FcfsOrder,
    PriorityOrder,
    ShortestJobFirst,
    UnknownPolicyError,
    WaitingOrder,
    policy_class,
)

AnyWaitingOrder = WaitingOrder | FcfsOrder | FairOrder
"""What `scheduler.waiting.make_queue` makes a queue for."""

__all__ = [
    "VICTIM_POLICIES",
    "WAITING_ORDERS",
    "AgedPriorityOrder",
    "AnyWaitingOrder",
    "FairOrder",
    "FcfsOrder",
    "FcfsTail",
    "FewestGenerated",
    "LeastComputed",
    "LowestPriority",
    "MostBlocksFreed",
    "PreemptionMode",
    "PriorityOrder",
    "Recompute",
    "RequestView",
    "RunningView",
    "ShortestJobFirst",
    "ShortestRemaining",
    "UnknownPolicyError",
    "VictimPolicy",
    "VictimView",
    "WaitingOrder",
    "policy_class",
]
