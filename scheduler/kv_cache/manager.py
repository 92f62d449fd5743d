"""What a KV cache group does with its blocks, and the plain case: full attention, which keeps them all.

One manager per group works on the group's block table in each request (`request.block_tables[index]`). The
coordinator asks all managers the same few questions; other attention kinds answer them differently
(`sliding`, `chunked_local`, `mamba`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from scheduler.config import KVCacheConfig, KVGroupSpec
from scheduler.kv_cache.interface import NEVER, NULL_BLOCK
from scheduler.kv_cache.pool import BlockPool
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.speculation import Drafter


class EntryLimit:
    """Up to how many tokens the blocks of a group may be entered."""

    def __init__(self, config: KVCacheConfig, common_block_size: int, rules: Rules, drafter: Drafter) -> None:
        self._unread = max(0, drafter.reads_ahead - 1)
        self._one_group = len(config.groups) == 1
        self._everything = (self._one_group and not self._unread) or not rules.enter_common_lengths
        self._common = common_block_size
        self._drops_last_hit = drafter.drops_last_hit

    def tokens(self, block_size: int, num_tokens: int) -> int:
        """The limit for a group with this block size once `num_tokens` tokens are computed or being computed.

        A drafter that has the last hit block dropped needs one block more than the common length.
        """
        if self._everything:
            return num_tokens
        fed = num_tokens - self._unread
        if self._one_group:
            return fed
        common = self._common
        if self._drops_last_hit and num_tokens >= common:
            return min(fed, fed // common * common + block_size)
        return num_tokens // common * common


@dataclass(frozen=True, slots=True)
class PromptBoundary:
    """The last hash boundary of a prompt: the block that holds it counts as hashed up to there.

    Hashes that cover `hash_lookahead` tokens ahead may not reach the end of the prompt yet; then it moves
    along with them. `at_edges`: it counts also where it ends a block, for groups that do not enter all;
    these kept their last state a hash block before if the drafter drops the last hit block.
    """

    hash_block_size: int
    block_size: int
    drops_last_hit: bool
    hash_lookahead: int
    at_edges: bool

    def tokens(self, request: Request, num_tokens: int) -> int:
        """Where it is while blocks are entered up to `num_tokens`; 0 if not reached, or of no account."""
        prompt = request.num_prompt_tokens - (0 if self.drops_last_hit else 1)
        boundary = min(prompt, request.num_tokens - self.hash_lookahead)
        boundary -= boundary % self.hash_block_size
        if self.at_edges and self.drops_last_hit:
            boundary = max(boundary - self.hash_block_size, 0)
        if boundary > num_tokens or not (self.at_edges or boundary % self.block_size):
            return 0
        return boundary


class ReachableBlocks:
    """The blocks of a sliding-window group that a hit can use: a window's worth before each place to end.

    Places to end are the multiples of `retention_tokens` (None: of the common block size; 0: none), and,
    unless it is None, the ends of this prompt's replays: the prompt itself and the request's junction. If the
    drafter has the last hit block computed again (`drops_last_hit`), all groups end one block before; with
    `looks_beyond` this group needs that block too.
    """

    def __init__(
        self,
        block_size: int,
        window: int,
        common_block_size: int,
        retention_tokens: int | None,
        drops_last_hit: bool,
        looks_beyond: bool,
    ) -> None:
        self._size = block_size
        self._common = common_block_size
        self._drops_last_hit = drops_last_hit
        self._shift = int(looks_beyond)
        self._needed = -(-(window - 1) // block_size) + self._shift
        self._replays = retention_tokens is not None
        segment = lcm(common_block_size, block_size) if retention_tokens is None else retention_tokens
        self._segment_blocks = segment // block_size

    def among(self, request: Request, first: int, full: int) -> Sequence[int]:
        """Which of the blocks `first` … `full` - 1 to enter."""
        segment, needed, shift = self._segment_blocks, self._needed, self._shift
        if segment and needed >= segment:
            return range(first, full)
        wanted: set[int] = set()
        if segment:
            wanted.update(
                i for i in range(max(first, shift), full) if (i - shift) % segment >= segment - needed
            )
        if self._replays:
            for boundary in self._boundaries(request):
                end = boundary // self._common * self._common // self._size + shift
                wanted.update(range(max(end - needed, first), min(end, full)))
        return sorted(wanted)

    def _boundaries(self, request: Request) -> list[int]:
        prompt, common, junction = request.num_prompt_tokens, self._common, request.junction_tokens
        if not self._drops_last_hit:
            boundaries = [prompt - 1]
        else:
            boundaries = [max(0, length // common * common - common) for length in (prompt - 1, prompt)]
        if junction:
            boundaries.append(junction)
            if self._drops_last_hit:
                boundaries.append(junction - self._size)
        return boundaries


class GroupManager:
    """Blocks of one group; this base class is full attention. All `num_…_tokens` count from the prompt's
    start.
    """

    keeps_all = True
    """False for attention kinds that give blocks back while the request runs."""
    gives_up_last_hit = True
    """Whether a drafter that has the last hit block computed again needs it of this group. A single state
    cannot be given up: there is none before it.
    """
    ignores_lookahead = False
    """Whether a drafter's lookahead slots need no blocks here."""

    def __init__(
        self, spec: KVGroupSpec, index: int, pool: BlockPool, keys_per_block: int, caching: bool
    ) -> None:
        self.spec = spec
        self.block_size = self.lookup_size = spec.block_size
        """Hits end at multiples of `lookup_size` tokens."""
        self.index = index
        self.pool = pool
        self.caching = caching
        self.keys_per_block = keys_per_block
        self.align_after_drop = False
        """Whether a hit's length is aligned after its last block is dropped, not before."""
        self.prompt_boundary: PromptBoundary | None = None
        self.reachable: ReachableBlocks | None = None
        """Where the release enters only blocks that can be hit."""

    def begin_step(self) -> None:
        """A new step is about to be planned."""

    def end_step(self) -> None:
        """The step is planned."""

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

    def table_of(self, hits: list[int]) -> list[int]:
        """The blocks of the table that hold the hits, of which there is one for each `lookup_size` tokens."""
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
        table, keys, step = request.block_tables[index], request.block_keys, self.keys_per_block
        full = min(num_tokens // self.block_size, len(table))  # a session may outgrow the model's length
        if first >= full:
            return
        last = min(full, len(table))  # the text of a session may be longer, the model not
        entered = [i for i in self.enterable(request, first, last) if table[i] != NULL_BLOCK]
        for i in entered:
            if self.prompt_boundary:
                self.pool.forget(table[i])
            self.pool.enter(table[i], keys[(i + 1) * step - 1], index)
        if self.pool.events is not None:
            self.pool.events.note_stored(request, index, first, full, entered)
            if self.prompt_boundary is not None and not self.prompt_boundary.at_edges:
                boundary = self.prompt_boundary.tokens(request, num_tokens)
                if boundary % self.block_size and first <= boundary // self.block_size < full:
                    block = table[boundary // self.block_size]
                    self.pool.events.note_boundary(request, index, boundary, block)
        request.num_cached_blocks[index] = full

    def enterable(self, request: Request, first: int, full: int) -> Sequence[int]:
        """Which of the full blocks `first` … `full` - 1 to enter in the prefix cache."""
        return range(first, full)

    def enter_boundary(self, request: Request, num_tokens: int, num_unhashed_tokens: int) -> int | None:
        """Let the block that holds the prompt's last hash boundary count as hashed up to there.

        Blocks are entered up to `num_tokens`; if there were all hashes, up to `num_unhashed_tokens`. Returns
        the key under which it was entered just now.
        """
        if self.prompt_boundary is None:
            return None
        boundary = self.prompt_boundary.tokens(request, num_tokens)
        table, place = request.block_tables[self.index], (boundary - 1) // self.block_size
        passed = request.num_cached_blocks[self.index]
        if self.prompt_boundary.at_edges:
            passed = num_unhashed_tokens // self.block_size
        if not boundary or boundary // self.block_size < passed:
            return None
        is_inside_state = self.lookup_size < self.block_size and boundary % self.block_size
        if is_inside_state and boundary <= request.num_computed_tokens:
            return None  # it has been written over
        if place < len(table) and table[place] != NULL_BLOCK:
            block = table[place]
            key = request.block_keys[boundary // self.prompt_boundary.hash_block_size - 1]
            if self.pool.key_of_block[block] != key:
                self.pool.forget(block)
                self.pool.enter(block, key, self.index)
                if self.pool.events is not None:
                    self.pool.events.note_boundary(request, self.index, boundary, block)
                return key
        return None

    def num_hashed_tokens(self, request: Request) -> int:
        """The end of the last block of the request that carries a key."""
        table = request.block_tables[self.index]
        for i in range(len(table) - 1, -1, -1):
            if table[i] != NULL_BLOCK and self.pool.key_of_block[table[i]] is not None:
                if i < request.num_cached_blocks[self.index] or self.prompt_boundary is None:
                    return (i + 1) * self.block_size
                keys, last = request.block_keys, (i + 1) * self.keys_per_block - 1
                while last >= len(keys) or keys[last] != self.pool.key_of_block[table[i]]:
                    last -= 1
                return (last + 1) * self.prompt_boundary.hash_block_size
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
