"""Preemption modes: what becomes of a victim's KV when its blocks are taken."""

from __future__ import annotations

from typing import Protocol

from scheduler.request import Request


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
