"""The KV cache over several groups of layers: finds prefix hits, allocates, enters and frees in all of them.

Groups share the block pool; where the order of taking blocks shows, it is: hits of every group first, then
blocks for externally loaded tokens, then new blocks, group by group.
"""

from __future__ import annotations

from collections import deque

from scheduler.config import GroupKind, KVCacheConfig, KVGroupSpec
from scheduler.kv_cache.hashes import BlockHasher
from scheduler.kv_cache.interface import NEVER, NULL_BLOCK, KVCache, PrefixHits
from scheduler.kv_cache.lookup import PrefixLookup
from scheduler.kv_cache.manager import EntryLimit, GroupManager, PromptBoundary, ReachableBlocks
from scheduler.kv_cache.pool import BlockPool
from scheduler.kv_cache.state_chunks import StateChunks
from scheduler.kv_cache.windows import AlignedMambaManager, ChunkedLocalManager, MambaManager, SlidingManager
from scheduler.kv_events import KVEventLog
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.speculation import Drafter

_MANAGERS: dict[GroupKind, type[GroupManager]] = {
    GroupKind.FULL: GroupManager,
    GroupKind.SLIDING: SlidingManager,
    GroupKind.CHUNKED_LOCAL: ChunkedLocalManager,
    GroupKind.MAMBA: MambaManager,
}


def _manager_class(spec: KVGroupSpec) -> type[GroupManager]:
    if spec.is_aligned:
        return AlignedMambaManager
    return _MANAGERS[spec.kind]


class GroupedKVCache(KVCache):
    """Block tables and prefix cache of any groups: one `BlockPool`, and a manager for each group.

    `drafter` is what speculative decoding asks of it, `rules` are those of the release. A step never gives a
    request more than `largest_chunk` tokens.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_model_len: int,
        rules: Rules | None = None,
        drafter: Drafter | None = None,
        largest_chunk: int = NEVER,
    ) -> None:
        rules, drafter = rules or Rules(), drafter or Drafter()
        self.rules = rules
        self.max_model_len = max_model_len
        self.num_lookahead_tokens = drafter.lookahead_slots
        self.caching = config.enable_caching
        self.drop_last_hit = drafter.drops_last_hit
        self._steady = drafter.drafting_slots == 0
        pool = self.block_pool = BlockPool(
            config.num_blocks, len(config.groups), reuse_unhashed_first=rules.reuse_unhashed_first
        )
        self.pool = pool
        self.hasher = BlockHasher(config.hash_block_size, drafter.hash_lookahead)
        self.managers = [
            _manager_class(spec)(
                spec,
                index,
                pool,
                max(spec.block_size // config.hash_block_size, 1),
                config.enable_caching,
            )
            for index, spec in enumerate(config.groups)
        ]
        self._droppers = [manager for manager in self.managers if not manager.keeps_all]
        self._state_chunks: StateChunks | None = None
        if any(isinstance(manager, AlignedMambaManager) for manager in self.managers):
            self._state_chunks = StateChunks(config.hash_block_size, rules, drafter, largest_chunk)
        self._lookup = PrefixLookup(config, self.managers, rules, drops_last_hit=self.drop_last_hit)
        self._entry_limit = EntryLimit(config, self._lookup.alignment, rules, drafter)
        if self.caching:
            self._choose_what_to_enter(config, rules)
        self.block_sizes = [manager.block_size for manager in self.managers]
        self.holders = {}

    def _choose_what_to_enter(self, config: KVCacheConfig, rules: Rules) -> None:
        common, drop = self._lookup.alignment, self.drop_last_hit
        retention = config.window_retention_tokens
        for manager in self.managers:
            spec = manager.spec
            manager.align_after_drop = rules.drop_last_hit_once
            if isinstance(manager, AlignedMambaManager):
                manager.read_once_written = rules.read_states_once_written
                if rules.checkpoint_states:
                    manager.lookup_size = config.hash_block_size
            by_window = spec.kind is GroupKind.SLIDING and rules.enter_reachable_window_blocks
            if by_window or (isinstance(manager, AlignedMambaManager) and rules.checkpoint_states):
                assert retention != "release", "the engine puts the release's default in"
                beyond = drop and manager.gives_up_last_hit
                manager.reachable = ReachableBlocks(
                    spec.block_size, manager.window, common, retention, drop, beyond
                )
            is_larger = manager.keys_per_block > 1
            is_state = isinstance(manager, AlignedMambaManager) and len(config.groups) > 1
            is_state = is_state and (is_larger or not drop)
            if rules.enter_common_lengths and (is_state or (is_larger and spec.kind is GroupKind.FULL)):
                manager.prompt_boundary = PromptBoundary(
                    config.hash_block_size, spec.block_size, drop, self.hasher.lookahead, at_edges=is_state
                )

    def tell_events(self, log: KVEventLog) -> None:
        """From now on note in `log` what enters and leaves the prefix cache."""
        self.block_pool.events = log

    # --- lookup -----------------------------------------------------------------------------------------

    def no_hits(self) -> PrefixHits:
        """What a request starts from that may not or need not look."""
        return PrefixHits([[] for _ in self.managers])

    def find_hits(self, request: Request) -> PrefixHits:
        """The longest cached prefix, never the whole text: the last token must be computed to sample the
        next.
        """
        self.hasher.extend(request)
        return self._lookup.find(request)

    def begin_step(self) -> None:
        """A new step is about to be planned."""
        if self._state_chunks is not None:
            for manager in self.managers:
                manager.begin_step()

    def end_step(self) -> None:
        """The step is planned."""
        if self._state_chunks is not None:
            for manager in self.managers:
                manager.end_step()

    def cut_at_state_boundary(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """The next tokens of a prefill, at most `num_tokens`, that end where a Mamba state is wanted."""
        if self._state_chunks is None:
            return num_tokens
        return self._state_chunks.cut(request, num_computed_tokens, num_tokens)

    # --- allocation -------------------------------------------------------------------------------------

    def allocate(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_lookahead_tokens: int = 0,
        hits: PrefixHits | None = None,
        num_external_tokens: int = 0,
        enter_cache: bool = True,
        keep_free: int = 0,
    ) -> bool:
        """The managers of all groups are asked first, then each takes what it needs."""
        num_hit_tokens = hits.num_tokens if hits else 0
        computed = request.num_computed_tokens + num_hit_tokens + num_external_tokens
        computed = min(computed, self.max_model_len)
        num_slots = min(computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        if request.block_tables and self._droppers:
            self._drop_skipped(request, computed)
        needed = 0
        own_slots = computed + num_new_tokens
        for manager in self.managers:
            group_hits = hits.blocks[manager.index] if hits else ()
            slots = own_slots if manager.ignores_lookahead else num_slots
            needed += manager.blocks_needed(request, slots, group_hits, computed)
        if needed > self.block_pool.free_queue.size - keep_free:
            return False

        if not request.block_tables:
            self._open_tables(request, hits, computed, num_external_tokens)
        if needed:
            for manager in self.managers:
                manager.extend(request, own_slots if manager.ignores_lookahead else num_slots)
        if self.caching and enter_cache:
            self.enter(request, min(computed + num_new_tokens, request.num_tokens))
        self._note_next_change(request, computed, num_new_tokens)
        return True

    def grow(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> bool:
        """`allocate` for a running request: it has tables and finds no hits."""
        computed = min(request.num_computed_tokens, self.max_model_len)
        num_slots = min(computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        if self._droppers:
            self._drop_skipped(request, computed)
        needed, own_slots = 0, computed + num_new_tokens
        for manager in self.managers:
            slots = own_slots if manager.ignores_lookahead else num_slots
            needed += manager.blocks_missing(request, slots)
        if needed:
            if needed > self.block_pool.free_queue.size:
                return False
            for manager in self.managers:
                manager.extend(request, own_slots if manager.ignores_lookahead else num_slots)
        num_tokens = min(computed + num_new_tokens, request.num_tokens)
        if num_tokens >= request.next_full_tokens and self.caching:
            self.enter(request, num_tokens)
        self._note_next_change(request, computed, num_new_tokens)
        return True

    def num_blocks_for(
        self,
        request: Request,
        num_tokens: int,
        hits: PrefixHits | None,
        num_batched_tokens: int,
        num_external_tokens: int = 0,
    ) -> int:
        """Free blocks it takes for a request to have so many tokens, if steps compute up to
        `num_batched_tokens` of them: blocks that will have fallen out of a window by then are not needed.
        """
        computed = request.num_computed_tokens + num_external_tokens + (hits.num_tokens if hits else 0)
        return sum(
            manager.blocks_needed(
                request,
                num_tokens,
                hits.blocks[manager.index] if hits else (),
                computed,
                manager.most_blocks(num_batched_tokens, self.max_model_len),
            )
            for manager in self.managers
        )

    def drop_out_of_sight(self, request: Request) -> None:
        """Give back what no further step would attend to; in early releases as if all known tokens had KV."""
        if request.block_tables and self._droppers:
            by_processed = self.rules.windows_drop_processed_tokens
            self._drop_skipped(request, request.num_computed_tokens if by_processed else request.num_tokens)

    def _drop_skipped(self, request: Request, computed: int) -> None:
        if self.rules.windows_drop_processed_tokens:
            computed -= request.num_tokens_in_flight
        for manager in self._droppers:
            manager.drop_skipped(request, computed)

    def _open_tables(
        self, request: Request, hits: PrefixHits | None, computed: int, num_external_tokens: int
    ) -> None:
        request.block_tables = [[] for _ in self.managers]
        request.num_cached_blocks = [0] * len(self.managers)
        self.holders[request.request_id] = request
        for manager in self.managers:
            manager.take_hits(request, hits.blocks[manager.index] if hits else (), computed)
        if num_external_tokens:
            for manager in self.managers:
                if manager.num_skipped_tokens(computed) < computed:  # else none of them is attended to
                    manager.extend(request, computed)

    def _note_next_change(self, request: Request, computed: int, num_tokens: int) -> None:
        """Work out up to where one-token steps need no call of `allocate`.

        Nowhere while a prompt or what was lost by a preemption is computed: then there is more to note.
        """
        after = computed + num_tokens
        recomputing = after < max(request.high_water_tokens, request.num_tokens)
        until = 0 if recomputing or not self._steady else self.max_model_len - 1
        if self.rules.windows_drop_processed_tokens:
            computed -= request.num_tokens_in_flight
        for manager in self.managers:
            until = min(until, manager.next_change_tokens(request, computed))
        request.next_kv_change_tokens = until - self.num_lookahead_tokens

    # --- cache and end ----------------------------------------------------------------------------------

    def enter(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the prefix cache of every group."""
        size = self.hasher.block_size
        if (len(request.block_keys) + 1) * size <= num_tokens:
            self.hasher.extend(request)
        next_full = NEVER
        for manager in self.managers:
            unhashed_limit = self._entry_limit.tokens(manager.block_size, num_tokens)
            limit = min(unhashed_limit, len(request.block_keys) * size)
            manager.enter(request, limit)
            manager.enter_boundary(request, limit, unhashed_limit)
            next_full = min(next_full, manager.next_full_tokens(request))
        request.next_full_tokens = next_full

    def free(self, request: Request) -> None:
        """Release everything the request holds, group by group, the tail of each table first."""
        if request.block_tables:
            for manager in self.managers:
                manager.free(request)
            self.forget_tables(request)

    def forget_tables(self, request: Request) -> None:
        """The request holds nothing any more; its blocks have been released, or are kept by the caller."""
        request.block_tables = []
        request.num_cached_blocks = []
        request.next_kv_change_tokens = 0
        del self.holders[request.request_id]

    def num_hashed_tokens(self, request: Request) -> int:
        """How far the request's blocks are in the prefix cache, over all groups."""
        if not request.block_tables:
            return 0
        return min(manager.num_hashed_tokens(request) for manager in self.managers)

    def num_common_prefix_blocks(self, request: Request) -> list[int]:
        """Per group: leading blocks of this request that all holders share. Full attention only, else 0."""
        common = []
        for manager in self.managers:
            count = 0
            if self.caching and manager.spec.kind is GroupKind.FULL and request.block_tables:
                for block in request.block_tables[manager.index]:
                    if block == NULL_BLOCK or self.block_pool.ref_counts[block] != len(self.holders):
                        break
                    count += 1
            common.append(count)
        return common


class DeferredFrees:
    """Blocks given up while a step in flight still writes into them; they are freed when it is processed."""

    def __init__(self, kv_cache: GroupedKVCache) -> None:
        self._kv_cache = kv_cache
        self.waiting: deque[tuple[int, list[int]]] = deque()
        """Step numbers in rising order, each with the blocks of all groups that one request held."""

    def free(self, request: Request, step_number: int) -> None:
        """Take a request's blocks from it, to be released once the step of this number is processed."""
        blocks = [block for table in request.block_tables for block in table if block != NULL_BLOCK]
        if request.block_tables:
            self._kv_cache.forget_tables(request)
        if blocks:
            self.waiting.append((step_number, blocks))

    def release(self, step_number: int) -> None:
        """The step of this number is processed: release what waited for it, the last block first."""
        while self.waiting and self.waiting[0][0] <= step_number:
            self._kv_cache.block_pool.release(reversed(self.waiting.popleft()[1]))
