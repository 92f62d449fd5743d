"""Mamba (state-space) layers: one state block instead of one block per so many tokens."""

from __future__ import annotations

from scheduler.kv_cache.sliding import WindowManager
from scheduler.request import Request


class MambaManager(WindowManager):
    """State of a mamba group; see the modes in `KVGroupSpec`."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Only the state after the last token matters."""
        return max(0, num_computed_tokens - 1)

    def quiet_until(self, request: Request, num_computed_tokens: int) -> int:
        """State blocks move with every block boundary; leave it to the full allocation."""
        return 0
