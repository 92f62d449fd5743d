"""Who is preempted when a running request finds no free KV blocks, and what becomes of the victim's KV.

Every choice breaks ties towards the tail of the running list, where vLLM's FCFS victim stands; only
`LowestPriority` takes the earliest of equals, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from scheduler.policies.view import RunningView, VictimView
from scheduler.request import Request


class VictimPolicy(Protocol):
    """Chooses who loses its blocks."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """Index into `running` of the victim; `needy`, who lacks blocks, is one of them and may be chosen."""
        ...


class FcfsTail:
    """vLLM's victim under FCFS: the last of the running list, the latest to have been admitted."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """The last."""
        return len(running) - 1


class LowestPriority:
    """vLLM's victim under the priority policy: largest (priority, arrival time), the first of equals."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """The least important, of equals the latest to arrive."""
        best, worst_key = 0, (running[0].priority, running[0].arrival_time)
        for index, view in enumerate(running):
            key = (view.priority, view.arrival_time)
            if key > worst_key:
                best, worst_key = index, key
        return best


class LeastComputed:
    """Who has the fewest computed tokens: what is thrown away is then the least."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """Fewest computed tokens."""
        return _last_smallest(running, lambda view: view.num_computed_tokens)


class MostBlocksFreed:
    """Whose blocks make the most room: fewer requests have to go, each at a higher price.

    Blocks shared with others free nothing and do not count. Two requests that together exceed the cache can
    take turns in preempting each other; the progress guard ends a run in which nobody gets on.
    """

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """Most blocks that nobody shares."""
        return _last_smallest(running, lambda view: -view.num_blocks_freed)


class FewestGenerated:
    """Who has shown its user the least: streams that are under way go on."""

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """Fewest output tokens."""
        return _last_smallest(running, lambda view: view.num_output_tokens)


class ShortestRemaining:
    """Shortest remaining work keeps its place: who is expected to generate the most from here on has to go.

    Works on the length guess that came with each request; a request without one is taken to go on for ever.
    """

    def choose(self, running: RunningView, needy: VictimView) -> int:
        """Most expected tokens to come."""
        return _last_smallest(running, _expected_end)


def _expected_end(view: VictimView) -> float:
    remaining = view.expected_remaining_tokens
    return float("-inf") if remaining is None else -remaining


def _last_smallest(running: RunningView, key: Callable[[VictimView], float]) -> int:
    """Index of the smallest key, the last of equals."""
    best, smallest = 0, key(running[0])
    for index, view in enumerate(running):
        value = key(view)
        if value <= smallest:
            best, smallest = index, value
    return best


class PreemptionMode(Protocol):
    """Is told of every preemption while the victim still has its blocks.

    A mode that keeps the KV elsewhere hands it back through the KV connector: there the request finds it as
    an external hit when its turn comes again (see `scheduler.connector`).
    """

    def before_preemption(self, request: Request) -> None:
        """`request` is about to lose its blocks; `num_computed_tokens` and block tables still stand."""
        ...


class Recompute:
    """vLLM's way: nothing is kept but what the prefix cache happens to keep."""

    def before_preemption(self, request: Request) -> None:
        """Nothing to do."""
