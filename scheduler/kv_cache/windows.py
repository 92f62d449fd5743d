"""KV groups that forget: sliding windows, chunked-local attention, and the states of Mamba layers.

Only the latest tokens matter to such a group, so blocks before them are given back while the request runs and
become null blocks in its table.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import KVGroupSpec
from scheduler.kv_cache.interface import NEVER, NULL_BLOCK
from scheduler.kv_cache.manager import GroupManager, append_column, shorten
from scheduler.kv_cache.pool import BlockPool
from scheduler.request import Request


class WindowManager(GroupManager):
    """What sliding-window and chunked-local attention share: tokens fall out of sight, whole blocks are
    dropped.
    """

    keeps_all = False

    def blocks_needed(
        self,
        request: Request,
        num_slots: int,
        hits: Sequence[int],
        num_computed_tokens: int,
        most_blocks: int = NEVER,
    ) -> int:
        """As for full attention, but in the first allocation blocks already out of sight need no memory."""
        if request.block_tables:
            return super().blocks_needed(request, num_slots, hits, num_computed_tokens, most_blocks)
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        needed = min(-(-num_slots // self.block_size), most_blocks) - max(skipped, len(hits))
        return max(needed, 0) + self.num_free_hits(hits[skipped:])

    def take_hits(self, request: Request, hits: Sequence[int], num_computed_tokens: int) -> None:
        """Null blocks for what is out of sight, then the hits beyond."""
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        super().take_hits(request, [*[NULL_BLOCK] * skipped, *hits[skipped:]], num_computed_tokens)

    def drop_skipped(self, request: Request, num_computed_tokens: int) -> None:
        """Release the blocks out of sight, highest index first, down to the first null block."""
        table = request.block_tables[self.index]
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        dropped = []
        for i in range(min(skipped, len(table)) - 1, -1, -1):
            if table[i] == NULL_BLOCK:
                break
            dropped.append(table[i])
            table[i] = NULL_BLOCK
        if dropped:
            self.pool.release(dropped)


class SlidingManager(WindowManager):
    """Sliding-window attention over `window` tokens."""

    @property
    def window(self) -> int:
        """Tokens that a token sees, itself included."""
        return self.spec.window

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The next token sees itself and the window - 1 tokens before it."""
        return max(0, num_computed_tokens - self.window + 1)

    def longest_hit(
        self, keys: Sequence[int], max_tokens: int, groups: Sequence[int], drop_last: bool, alignment: int
    ) -> list[list[int]]:
        """The rightmost run of hits as long as the window, null blocks before it; else the run from block
        0.
        """
        size = self.lookup_size
        needed = max(-(-(self.window - 1) // size) + drop_last, 1)
        limit = min(max_tokens // size, len(keys))
        columns: list[list[int] | None] = [None] * limit
        run = 0
        end = limit
        for i in range(limit - 1, -1, -1):
            found = self.find_in(keys[i], groups)
            if found is None:
                run = 0
                continue
            if run == 0:
                end_tokens = (i if drop_last and self.align_after_drop else i + 1) * size
                if end_tokens % alignment:
                    continue
                end = i + 1
            columns[i] = found
            run += 1
            if run >= needed:
                break
        length = end if run >= needed else run
        hits: list[list[int]] = [[] for _ in groups]
        for i in range(length):
            found = columns[i] if i >= end - run else None
            append_column(hits, found or [NULL_BLOCK] * len(groups))
        if run < needed and not self.align_after_drop:
            self.align(hits, alignment)
        if drop_last:
            shorten(hits, len(hits[0]) - 1)
        if run < needed and self.align_after_drop:
            self.align(hits, alignment)
        return hits

    def enterable(self, request: Request, first: int, full: int) -> Sequence[int]:
        """Only blocks that a hit can use, where the release says so."""
        if self.reachable is None:
            return range(first, full)
        return self.reachable.among(request, first, full)

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """A window and a step, not aligned with blocks."""
        longest = min(self.window - 1 + num_batched_tokens, max_model_len)
        return -(-longest // self.block_size) + 1

    def next_change_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Ends too where the next whole block falls out of the window."""
        dropped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        next_drop = (dropped + 1) * self.block_size + self.window - 1
        return min(super().next_change_tokens(request, num_computed_tokens), next_drop)


class ChunkedLocalManager(WindowManager):
    """Local attention within chunks of `spec.chunk` tokens."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Everything before the chunk of the next token."""
        return num_computed_tokens // self.spec.chunk * self.spec.chunk

    def longest_hit(
        self, keys: Sequence[int], max_tokens: int, groups: Sequence[int], drop_last: bool, alignment: int
    ) -> list[list[int]]:
        """Null blocks up to the chunk of the last token looked up, then a run of hits."""
        limit = min(max_tokens // self.block_size, len(keys))
        first = self.num_skipped_tokens(max_tokens) // self.block_size
        hits = [[NULL_BLOCK] * min(first, limit) for _ in groups]
        for i in range(first, limit):
            found = self.find_in(keys[i], groups)
            if found is None:
                break
            append_column(hits, found)
        if drop_last:
            shorten(hits, len(hits[0]) - 1)
        self.align(hits, alignment)
        return hits

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """A chunk and a step."""
        return -(-min(self.spec.chunk + num_batched_tokens, max_model_len) // self.block_size)

    def next_change_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Ends too where the next chunk begins."""
        next_chunk = self.num_skipped_tokens(num_computed_tokens) + self.spec.chunk
        return min(super().next_change_tokens(request, num_computed_tokens), next_chunk)


class MambaManager(SlidingManager):
    """State blocks in the modes "all" (a state at every block boundary) and "none" (block size = longest
    text).

    What counts of a Mamba (state-space) layer is the state after the last token, which is kept in one block.
    Seen from the allocator that is a window of two tokens: the block that holds the state before the next
    token stays, earlier ones become null blocks, and a prefix hit needs a single block, the last. Behind it
    stand the speculative blocks: one for the state after each draft token.
    """

    gives_up_last_hit = False

    def __init__(
        self, spec: KVGroupSpec, index: int, pool: BlockPool, keys_per_block: int, caching: bool
    ) -> None:
        super().__init__(spec, index, pool, keys_per_block, caching)
        self._num_speculative = spec.num_speculative_blocks
        self._speculative_slots = spec.num_speculative_blocks * spec.block_size

    @property
    def window(self) -> int:
        """The state before a token, and the token."""
        return 2

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """Not known to be capped."""
        return NEVER

    def blocks_needed(
        self,
        request: Request,
        num_slots: int,
        hits: Sequence[int],
        num_computed_tokens: int,
        most_blocks: int = NEVER,
    ) -> int:
        """As for windows, and the speculative blocks."""
        num_slots += self._speculative_slots
        return super().blocks_needed(request, num_slots, hits, num_computed_tokens, most_blocks)

    def blocks_missing(self, request: Request, num_slots: int) -> int:
        """As for full attention, and the speculative blocks."""
        return super().blocks_missing(request, num_slots + self._speculative_slots)

    def extend(self, request: Request, num_slots: int) -> None:
        """Append new blocks until there are `num_slots` slots, and the speculative blocks."""
        super().extend(request, num_slots + self._speculative_slots)

    def next_change_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Speculative blocks are no room for one token more."""
        own = len(request.block_tables[self.index]) - self._num_speculative
        return min(super().next_change_tokens(request, num_computed_tokens), own * self.block_size)


class AlignedMambaManager(MambaManager):
    """Mode "align": a step writes one state, at its end; null blocks stand for the boundaries it ran over."""

    ignores_lookahead = True

    def __init__(
        self, spec: KVGroupSpec, index: int, pool: BlockPool, keys_per_block: int, caching: bool
    ) -> None:
        super().__init__(spec, index, pool, keys_per_block, caching)
        self.read_once_written = False
        """Whether a state cannot be taken up in the step that writes it."""
        self._being_written: set[int | None] = set()
        """Their keys: another block with the same state is no different."""
        self._copied: list[int] = []
        """States that stay in the cache as they are, held until the step is planned."""
        self._copies_hit = False

    def table_of(self, hits: list[int]) -> list[int]:
        """Null blocks and the block with the state; the hit may end inside it."""
        if not hits:
            return hits
        return [NULL_BLOCK] * (-(-len(hits) * self.lookup_size // self.block_size) - 1) + hits[-1:]

    def begin_step(self) -> None:
        """States entered so far have been written."""
        self._being_written.clear()

    def end_step(self) -> None:
        """Nobody needs to hold what was copied any more."""
        if self._copied:
            self.pool.release(self._copied)
            self._copied.clear()

    def enterable(self, request: Request, first: int, full: int) -> Sequence[int]:
        """What enters is written only at the end of this step."""
        chosen = super().enterable(request, first, full)
        if self.read_once_written:
            table, keys, step = request.block_tables[self.index], request.block_keys, self.keys_per_block
            self._being_written.update(keys[(i + 1) * step - 1] for i in chosen if table[i] != NULL_BLOCK)
        return chosen

    def enter_boundary(self, request: Request, num_tokens: int, num_unhashed_tokens: int) -> int | None:
        """That state too is written only at the end of this step."""
        key = super().enter_boundary(request, num_tokens, num_unhashed_tokens)
        if key is not None and self.read_once_written:
            self._being_written.add(key)
        return key

    def blocks_needed(
        self,
        request: Request,
        num_slots: int,
        hits: Sequence[int],
        num_computed_tokens: int,
        most_blocks: int = NEVER,
    ) -> int:
        """One block if the step leaves the last one, at first the speculative ones too, and the hit block if
        it is free now.
        """
        hit_keys = (self.pool.key_of_block[block] for block in hits if block != NULL_BLOCK)
        if not self._being_written.isdisjoint(hit_keys):
            return NEVER  # a state can be taken up only when the step that writes it is over
        free_hits = self.num_free_hits(hits)
        needed = super().blocks_needed(request, num_slots, hits, num_computed_tokens, most_blocks)
        most = 1 if request.block_tables else 1 + self._num_speculative
        if request.block_tables:
            copies = self._is_kept(request)
        else:
            copies = self._ends_inside(hits, num_computed_tokens)
        return min(needed - free_hits, most) + free_hits + copies

    def blocks_missing(self, request: Request, num_slots: int) -> int:
        """One block if the step leaves the last one, one if it writes over a state that is to be kept."""
        return min(super().blocks_missing(request, num_slots), 1) + self._is_kept(request)

    def _ends_inside(self, hits: Sequence[int], num_computed_tokens: int) -> bool:
        return len(hits) * self.block_size > num_computed_tokens

    def _is_kept(self, request: Request) -> bool:
        """Whether the request stands inside a block whose state can be hit as it is."""
        if self.lookup_size == self.block_size:
            return False
        computed, table = request.num_computed_tokens, request.block_tables[self.index]
        place, inside = divmod(computed, self.block_size)
        return inside > 0 and place < len(table) and self.pool.key_of_block[table[place]] is not None

    def take_hits(self, request: Request, hits: Sequence[int], num_computed_tokens: int) -> None:
        """A state inside a block is copied before the request goes on from it."""
        super().take_hits(request, hits, num_computed_tokens)
        self._copies_hit = self._ends_inside(hits, num_computed_tokens)
        request.num_cached_blocks[self.index] -= self._copies_hit

    def extend(self, request: Request, num_slots: int) -> None:
        """Null blocks up to the last position, one new block in all.

        The speculative blocks of the step before move behind those null blocks, as far as they stand before
        the last position; a first step takes new ones.
        """
        table, speculative = request.block_tables[self.index], self._num_speculative
        is_first = self._copies_hit or len(table) == request.num_cached_blocks[self.index]  # only hits yet
        self._keep_state(request, table)
        last = -(-num_slots // self.block_size) - 1
        if len(table) >= last + 1 + speculative:
            return
        length = len(table)
        table += [NULL_BLOCK] * (last - length)
        for i in range(length if is_first else length - speculative, min(last, length)):
            table.append(table[i])
            table[i] = NULL_BLOCK
        table += self.pool.take(last + 1 + speculative - len(table))

    def _keep_state(self, request: Request, table: list[int]) -> None:
        """Before a state that can be hit is written over, it goes to a block of its own, or the request does
        that has hit it.
        """
        if self._copies_hit:
            self._copies_hit = False
            hit = table[-1]
            table[-1:] = self.pool.take(1)
            self._copied.append(hit)
        elif self._is_kept(request):
            block = table[request.num_computed_tokens // self.block_size]
            copy = self.pool.take(1)
            if self.read_once_written:
                self._being_written.add(self.pool.key_of_block[block])
            self.pool.move_key(block, copy[0])
            self._copied += copy

    def drop_skipped(self, request: Request, num_computed_tokens: int) -> None:
        """As for windows, but null blocks stand between the states, so the walk passes over them."""
        table = request.block_tables[self.index]
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        dropped = [i for i in range(min(skipped, len(table)) - 1, -1, -1) if table[i] != NULL_BLOCK]
        self.pool.release([table[i] for i in dropped])
        for i in dropped:
            table[i] = NULL_BLOCK
