"""What a KV cache group does with its blocks, and the plain case: full attention, which keeps them all.

One manager per group works on the group's block table in each request (`request.block_tables[index]`). The
coordinator asks all managers the same few questions; other attention kinds answer them differently
(`sliding`, `chunked_local`, `mamba`).
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import KVGroupSpec
from scheduler.kv_cache.entry import InBlockBoundary, ReachableBlocks
from scheduler.kv_cache.interface import NEVER, NULL_BLOCK
from scheduler.kv_cache.pool import BlockPool
from scheduler.request import Request


class GroupManager:
    """Blocks of one group; this base class is full attention. All `num_…_tokens` count from the prompt's
    start.
    """

    keeps_all = True
    """False for attention kinds that give blocks back while the request runs."""

    def __init__(
        self, spec: KVGroupSpec, index: int, pool: BlockPool, keys_per_block: int, caching: bool
    ) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.index = index
        self.pool = pool
        self.caching = caching
        self.keys_per_block = keys_per_block
        self.align_after_drop = False
        """Whether a hit's length is aligned after its last block is dropped, not before."""
        self.in_block_boundary: InBlockBoundary | None = None
        self.reachable: ReachableBlocks | None = None
        """Where the release enters only blocks that can be hit."""

    def begin_step(self) -> None:
        """A new step is about to be planned."""

    # --- lookup -----------------------------------------------------------------------------------------

    def longest_hit(
        self, keys: Sequence[int], max_tokens: int, groups: Sequence[int], drop_last: bool, alignment: int
    ) -> list[list[int]]:
        """The cached blocks that a text with these block keys (one per block of this group) can start from.

        Looks at no more than `max_tokens` tokens and finds a length that is a multiple of `alignment` tokens.
        A hit needs the block in each of `groups`, the groups with this spec; one list per group comes back.
        `drop_last`: the drafter needs the last hit block computed again.
        """
        hits: list[list[int]] = [[] for _ in groups]
        for i in range(min(max_tokens // self.block_size, len(keys))):
            found = self.find_in(keys[i], groups)
            if found is None:
                break
            append_column(hits, found)
        if drop_last:
            shorten(hits, len(hits[0]) - 1)
        self.align(hits, alignment)
        return hits

    def find_in(self, key: int, groups: Sequence[int]) -> list[int] | None:
        """The block with this key in each of the groups, None if one lacks it."""
        found = []
        for group in groups:
            block = self.pool.find(key, group)
            if block == NULL_BLOCK:
                return None
            found.append(block)
        return found

    def align(self, hits: list[list[int]], alignment: int) -> None:
        """Shorten hits to a multiple of `alignment` tokens."""
        length = len(hits[0])
        while length * self.block_size % alignment:
            length -= 1
        shorten(hits, length)

    # --- allocation -------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Tokens that a token sees, itself included."""
        return NEVER

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that no further step attends to once so many are computed."""
        return 0

    def blocks_needed(
        self,
        request: Request,
        num_slots: int,
        hits: Sequence[int],
        num_computed_tokens: int,
        most_blocks: int = NEVER,
    ) -> int:
        """Free blocks it takes to give the request `num_slots` slots, hits that are free now included.

        `most_blocks`: no request ever has more blocks than this at a time, however long it is.
        """
        table = request.block_tables[self.index] if request.block_tables else ()
        covered = len(table) + len(hits)
        needed = min(-(-num_slots // self.block_size), most_blocks) - covered
        return max(needed, 0) + self.num_free_hits(hits)

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """The most blocks a request can hold at a time if a step computes up to so many tokens of it."""
        return NEVER

    def blocks_missing(self, request: Request, num_slots: int) -> int:
        """New blocks it takes to give a request that has a table `num_slots` slots."""
        return max(-(-num_slots // self.block_size) - len(request.block_tables[self.index]), 0)

    def num_free_hits(self, hits: Sequence[int]) -> int:
        """Hit blocks without a holder: taking them out of the free queue uses capacity too."""
        ref_counts = self.pool.ref_counts
        return sum(1 for block in hits if block != NULL_BLOCK and ref_counts[block] == 0)

    def take_hits(self, request: Request, hits: Sequence[int], num_computed_tokens: int) -> None:
        """Put hit blocks at the start of the (empty) table. `num_computed_tokens`: local and external."""
        self.pool.touch(hits)
        request.block_tables[self.index].extend(hits)
        request.num_cached_blocks[self.index] = len(hits)

    def extend(self, request: Request, num_slots: int) -> None:
        """Append new blocks until there are `num_slots` slots."""
        table = request.block_tables[self.index]
        missing = -(-num_slots // self.block_size) - len(table)
        if missing > 0:
            table += self.pool.take(missing)

    def drop_skipped(self, request: Request, num_computed_tokens: int) -> None:
        """Give back the blocks that no further step attends to."""

    # --- cache and end ----------------------------------------------------------------------------------

    def enter(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the prefix cache, those not yet there."""
        index = self.index
        first = request.num_cached_blocks[index]
        full = num_tokens // self.block_size
        if first >= full:
            return
        table, keys, step = request.block_tables[index], request.block_keys, self.keys_per_block
        for i in self.enterable(request, first, full):
            block = table[i]
            if block != NULL_BLOCK:
                if self.in_block_boundary:
                    self.pool.forget(block)
                self.pool.enter(block, keys[(i + 1) * step - 1], index)
        request.num_cached_blocks[index] = full

    def enterable(self, request: Request, first: int, full: int) -> Sequence[int]:
        """Which of the full blocks `first` … `full` - 1 to enter in the prefix cache."""
        return range(first, full)

    def enter_boundary(self, request: Request, num_tokens: int) -> None:
        """Let the block that holds the prompt's last hash boundary count as hashed once that is computed."""
        if self.in_block_boundary is None:
            return
        boundary = self.in_block_boundary.tokens(request)
        i = boundary // self.block_size
        if boundary and boundary <= num_tokens and i >= request.num_cached_blocks[self.index]:
            block = request.block_tables[self.index][i]
            if self.pool.key_of_block[block] is None:
                key = request.block_keys[boundary // self.in_block_boundary.hash_block_size - 1]
                self.pool.enter(block, key, self.index)

    def num_hashed_tokens(self, request: Request) -> int:
        """The end of the last block of the request that carries a key."""
        table = request.block_tables[self.index]
        for i in range(len(table) - 1, -1, -1):
            if table[i] != NULL_BLOCK and self.pool.key_of_block[table[i]] is not None:
                if i < request.num_cached_blocks[self.index] or self.in_block_boundary is None:
                    return (i + 1) * self.block_size
                return self.in_block_boundary.tokens(request)
        return 0

    def free(self, request: Request) -> None:
        """Release the whole table, tail first."""
        self.pool.release(reversed(request.block_tables[self.index]))

    def next_change_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """While fewer tokens than this are computed, one more needs no new block, fills none and drops none.

        `num_computed_tokens`: computed before the step now being allocated for.
        """
        index = self.index
        until = len(request.block_tables[index]) * self.block_size
        if self.caching:
            next_full = (request.num_cached_blocks[index] + 1) * self.block_size
            if next_full <= until:
                return next_full - 1
        return until

    def next_full_tokens(self, request: Request) -> int:
        """The number of tokens that fills the next block to enter in the prefix cache."""
        return (request.num_cached_blocks[self.index] + 1) * self.block_size


def append_column(hits: list[list[int]], blocks: Sequence[int]) -> None:
    """Append one block to each group's hits."""
    for group_hits, block in zip(hits, blocks, strict=True):
        group_hits.append(block)


def shorten(hits: list[list[int]], length: int) -> None:
    """Cut every group's hits to `length` blocks (at least none)."""
    for group_hits in hits:
        del group_hits[max(length, 0) :]
