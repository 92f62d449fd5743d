"""Mamba (state-space) layers: what counts is the state after the last token, not a block per so many tokens.

A state is kept in a block. Seen from the allocator that is a window of two tokens: the block that holds the
state before the next token stays, earlier ones become null blocks, and a prefix hit needs a single block, the
last.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import KVGroupSpec
from scheduler.kv_cache.interface import NEVER, NULL_BLOCK
from scheduler.kv_cache.pool import BlockPool
from scheduler.kv_cache.sliding import SlidingManager
from scheduler.request import Request


class MambaManager(SlidingManager):
    """State blocks in the modes "all" (a state at every block boundary) and "none" (block size = longest
    text).
    """

    @property
    def window(self) -> int:
        """The state before a token, and the token."""
        return 2

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """See `GroupManager`; not known to be capped."""
        return NEVER


class AlignedMambaManager(MambaManager):
    """Mode "align": a step writes one state, at its end; null blocks stand for the boundaries it ran over."""

    def __init__(
        self, spec: KVGroupSpec, index: int, pool: BlockPool, keys_per_block: int, caching: bool
    ) -> None:
        super().__init__(spec, index, pool, keys_per_block, caching)
        self._being_written: set[int] = set()

    def begin_step(self) -> None:
        """States entered so far have been written."""
        self._being_written.clear()

    def enterable(self, request: Request, first: int, full: int) -> Sequence[int]:
        """What enters is written only at the end of this step."""
        chosen = super().enterable(request, first, full)
        table = request.block_tables[self.index]
        self._being_written.update(table[i] for i in chosen if table[i] != NULL_BLOCK)
        return chosen

    def blocks_needed(
        self,
        request: Request,
        num_slots: int,
        hits: Sequence[int],
        num_computed_tokens: int,
        most_blocks: int = NEVER,
    ) -> int:
        """One block if the step leaves the last one, and the hit block if it is free now."""
        if not self._being_written.isdisjoint(hits):
            return NEVER  # a state can be taken up only when the step that writes it is over
        free_hits = self.num_free_hits(hits)
        needed = super().blocks_needed(request, num_slots, hits, num_computed_tokens, most_blocks)
        return min(needed - free_hits, 1) + free_hits

    def blocks_missing(self, request: Request, num_slots: int) -> int:
        """One block if the step leaves the last one."""
        return min(super().blocks_missing(request, num_slots), 1)

    def extend(self, request: Request, num_slots: int) -> None:
        """Null blocks up to the last position, one new block there."""
        table = request.block_tables[self.index]
        missing = -(-num_slots // self.block_size) - len(table)
        if missing > 0:
            table += [NULL_BLOCK] * (missing - 1)
            table += self.pool.take(1)

    def drop_skipped(self, request: Request, num_computed_tokens: int) -> None:
        """As for windows, but null blocks stand between the states, so the walk passes over them."""
        table = request.block_tables[self.index]
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        dropped = [i for i in range(min(skipped, len(table)) - 1, -1, -1) if table[i] != NULL_BLOCK]
        self.pool.release([table[i] for i in dropped])
        for i in dropped:
            table[i] = NULL_BLOCK
