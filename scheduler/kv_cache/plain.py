"""The plain KV cache: one group of full attention, which is what most models have.

It decides as `grouped.GroupedKVCache` does, without the detour over groups, and its blocks move in runs (see
`runs`): what a request holds alone is taken, entered in the prefix cache and freed at a price per run, not
per block.
"""

from __future__ import annotations

from scheduler.config import GroupKind, KVCacheConfig
from scheduler.kv_cache.block_runs import RunHits
from scheduler.kv_cache.hashes import BlockHasher
from scheduler.kv_cache.interface import KVCache, PrefixHits
from scheduler.kv_cache.runs import RunPool
from scheduler.kv_events import KVEventLog
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.speculation import Drafter


def plain_suffices(config: KVCacheConfig, drafter: Drafter, *, frees_are_deferred: bool) -> bool:
    """Whether a `PlainKVCache` can serve: full attention only, hashed block by block, and freed at once."""
    spec = config.groups[0]
    return (
        len(config.groups) == 1
        and spec.kind is GroupKind.FULL
        and (not config.enable_caching or spec.block_size == config.hash_block_size)
        and drafter.reads_ahead <= 1
        and not drafter.hash_lookahead
        and not frees_are_deferred
    )


class PlainKVCache(KVCache):
    """Block tables and prefix cache of one group of full attention, hashed block by block.

    `drafter` is what speculative decoding asks of it, `rules` are those of the release.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_model_len: int,
        rules: Rules | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        rules, drafter = rules or Rules(), drafter or Drafter()
        self.caching = config.enable_caching
        self.max_model_len = max_model_len
        self.num_lookahead_tokens = drafter.lookahead_slots
        self.drop_last_hit = drafter.drops_last_hit
        self.hasher = BlockHasher(config.hash_block_size, drafter.hash_lookahead)
        self.block_size = config.groups[0].block_size
        self.block_sizes = [self.block_size]
        self.holders = {}
        self.run_pool = RunPool(config.num_blocks, reuse_unhashed_first=rules.reuse_unhashed_first)
        self.pool = self.run_pool

    def tell_events(self, log: KVEventLog) -> None:
        """From now on note in `log` what enters and leaves the prefix cache (there must be no cohort, which
        enters blocks without naming them).
        """
        self.run_pool.events = log

    # --- lookup -----------------------------------------------------------------------------------------

    def no_hits(self) -> PrefixHits:
        """No runs at all."""
        return self.run_pool.no_hits

    def find_hits(self, request: Request) -> PrefixHits:
        """The leading parts of runs that the text starts with, never the whole text."""
        self.hasher.extend(request)
        size = self.block_size
        hits = self.run_pool.find_hits(request.block_keys, (request.num_tokens - 1) // size)
        if self.drop_last_hit:
            hits.drop_last()
        hits.num_tokens = hits.num_blocks * size
        return hits

    # --- allocation -------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Nothing depends on steps here."""

    def end_step(self) -> None:
        """Nothing depends on steps here."""

    def cut_at_state_boundary(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """All of them: there are no states."""
        return num_tokens

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
        """The runs of the hits first, then new blocks; False if there are too few free ones."""
        pool, size = self.run_pool, self.block_size
        computed = request.num_computed_tokens + num_external_tokens
        num_held = len(request.block_tables[0]) if request.block_tables else 0
        run_hits = pool.no_hits
        if hits is not None:
            assert isinstance(hits, RunHits)
            run_hits = hits
            computed += hits.num_tokens
        num_hits, num_free_hits = run_hits.num_blocks, run_hits.num_free
        computed = min(computed, self.max_model_len)
        tokens = computed + num_new_tokens
        missing = -(-min(tokens + num_lookahead_tokens, self.max_model_len) // size) - num_held - num_hits
        if missing < 0:
            missing = 0
        if missing + num_free_hits > pool.free_queue.size - keep_free:
            return False
        if not num_held:
            table = pool.open_table(request, run_hits)
            if num_hits:
                run_hits.blocks = [table.copy()]
            request.block_tables = [table]
            request.num_cached_blocks = [num_hits]
            self.holders[request.request_id] = request
        if missing:
            request.block_tables[0] += pool.take(missing)
        if self.caching and enter_cache:
            self.enter(request, min(tokens, request.num_tokens))
        self.note_next_change(request, computed, num_new_tokens)
        return True

    def grow(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> bool:
        """New blocks behind the table where they are needed; False if there are too few free ones."""
        size = self.block_size
        table = request.block_tables[0]
        computed = min(request.num_computed_tokens, self.max_model_len)
        tokens = computed + num_new_tokens
        missing = -(-min(tokens + num_lookahead_tokens, self.max_model_len) // size) - len(table)
        if missing > 0:
            if missing > self.run_pool.free_queue.size:
                return False
            table += self.run_pool.take(missing)
        if self.caching:
            known = min(tokens, request.num_tokens)
            if known >= request.next_full_tokens:
                self.enter(request, known)
        self.note_next_change(request, computed, num_new_tokens)
        return True

    def num_blocks_for(
        self,
        request: Request,
        num_tokens: int,
        hits: PrefixHits | None,
        num_batched_tokens: int,
        num_external_tokens: int = 0,
    ) -> int:
        """What the table and the hits lack, and those hits that are free now."""
        needed = -(-num_tokens // self.block_size)
        if request.block_tables:
            needed -= len(request.block_tables[0])
        if hits is None:
            return max(needed, 0)
        assert isinstance(hits, RunHits)
        return max(needed - hits.num_blocks, 0) + hits.num_free

    def drop_out_of_sight(self, request: Request) -> None:
        """Nothing is ever out of sight of full attention."""

    def note_next_change(self, request: Request, computed: int, num_tokens: int) -> None:
        """Work out up to where one-token steps need no call of `grow`."""
        until = len(request.block_tables[0]) * self.block_size - self.num_lookahead_tokens
        if self.caching:
            until = min(until, request.next_full_tokens - 1)
        recomputing = computed + num_tokens < max(request.high_water_tokens, request.num_tokens)
        request.next_kv_change_tokens = 0 if recomputing else min(until, self.max_model_len - 1)

    # --- cache and end ----------------------------------------------------------------------------------

    def enter(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the prefix cache, those not yet there.

        The text of a session may be longer than its table, which ends where the model does.
        """
        size = self.block_size
        first, full = request.num_cached_blocks[0], num_tokens // size
        if full * size > self.max_model_len:
            full = min(full, len(request.block_tables[0]))
        if full > first:
            self._enter_blocks(request, first, full)
            request.num_cached_blocks[0] = full
            if self.run_pool.events is not None:
                self.hasher.extend(request)
                entered = range(first, full)
                self.run_pool.events.note_stored(request, 0, first, num_tokens // size, entered)
        else:
            full = first
        request.next_full_tokens = (full + 1) * size

    def entry_is_implied(self, request: Request) -> bool:
        """Whether the blocks that the request fills from here on belong to its last run, without being named.

        So it is while the text goes on by consecutive ids, and until somebody else computes the same text.
        """
        keys, run = request.block_keys, self.run_pool.runs_of[request.request_id][-1]
        return (
            run.first_key is not None
            and keys[-1] - run.first_key == keys.length - 1 - run.start
            and self.hasher.goes_on(request)
        )

    def _enter_blocks(self, request: Request, first: int, full: int) -> None:
        """Enter the blocks `first` … `full` - 1 of a table: they are in its last run, or begin one."""
        keys, run = request.block_keys, self.run_pool.runs_of[request.request_id][-1]
        if run.first_key is not None:
            known = min(keys.length, full) - 1
            if keys[known] - run.first_key == known - run.start and (
                known == full - 1 or self.hasher.goes_on(request)
            ):
                return
        if keys.length < full:
            self.hasher.extend(request)
        pool, i = self.run_pool, first
        while i < full:
            if run.first_key is None and not pool.claim(run, keys[i]):
                i = pool.enter_singly(request, i, full)
                continue
            assert run.first_key is not None
            if keys[i] == run.first_key + i - run.start:
                i = min(keys.end_behind(i), full)
            if i < full:
                run = pool.close(run, i)

    def free(self, request: Request) -> None:
        """Release all runs of the request, the last block of its table first."""
        if request.block_tables:
            self.run_pool.release(request)
            request.block_tables = []
            request.num_cached_blocks = []
            request.next_kv_change_tokens = 0
            del self.holders[request.request_id]

    def num_hashed_tokens(self, request: Request) -> int:
        """All blocks that were ever entered count: those that a request holds are not evicted."""
        return request.num_cached_blocks[0] * self.block_size if request.block_tables else 0

    def num_common_prefix_blocks(self, request: Request) -> list[int]:
        """Leading blocks of this request that all holders share, as a list of one."""
        if not self.caching or not request.block_tables:
            return [0]
        num_common, num_blocks = 0, len(request.block_tables[0])
        for run in self.run_pool.runs_of[request.request_id]:
            num_holders = 1 if run.sharers is None else len(run.sharers)
            if num_holders != len(self.holders):
                break
            num_common = num_common + len(run.blocks) if run.holder is None else min(run.end, num_blocks)
        return [num_common]
