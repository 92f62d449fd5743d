"""Rules of the KV cache: when blocks are cached, hit, freed and reused."""

from __future__ import annotations

from tests.mutation.mutant import (
    CACHE,
    GROUP,
    HASHES,
    LIFE,
    LOOKUP,
    PLAIN,
    POOL,
    RUNS,
    SCHEDULER,
    TESTS,
    WINDOWS,
    Mutant,
    one,
)

BLOCKS: dict[str, Mutant] = {
    "last_token_not_recomputed": Mutant(
        "a prefix hit covers at most all tokens but the last",
        (
            (PLAIN, "(request.num_tokens - 1) // size)", "request.num_tokens // size)"),
            (LOOKUP, "longest = request.num_tokens - 1", "longest = request.num_tokens"),
        ),
        noticed_by="0.16.0/connector_fail-3",
    ),
    "blocks_freed_head_first": one(
        "a request's blocks are freed tail first",
        GROUP,
        "self.pool.release(reversed(request.block_tables[self.index]))",
        "self.pool.release(request.block_tables[self.index])",
        noticed_by="0.16.0/mamba-0",
    ),
    "shared_blocks_freed_head_first": one(
        "a request's shared blocks are freed tail first",
        RUNS,
        "                run.sharers = None\n",
        "                run.sharers = None\n                run.blocks.reverse()\n",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "runs_freed_head_first": one(
        "a request's own blocks are freed tail first",
        RUNS,
        "for run in reversed(self.runs_of.pop(request.request_id)):",
        "for run in self.runs_of.pop(request.request_id):",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "freed_blocks_reused_first": Mutant(
        "freed blocks join the tail of the free queue",
        (
            (RUNS, "self.free_queue.append(run)", "self.free_queue.prepend(run)"),
            (POOL, "self.free_queue.append_many(freed)", "self.free_queue.prepend_many(freed)"),
        ),
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "free_hits_cost_nothing": Mutant(
        "hits on free blocks use capacity too",
        (
            (PLAIN, "if missing + num_free_hits >", "if missing >"),
            (GROUP, "if block != NULL_BLOCK and ref_counts[block] == 0", "if block < 0"),
        ),
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "cached_after_the_step": Mutant(
        "blocks enter the cache when they are scheduled: the same step can hit them",
        (
            (
                PLAIN,
                "self.enter(request, min(tokens, request.num_tokens))",
                "self.enter(request, min(tokens - num_new_tokens, request.num_tokens))",
            ),
            (
                CACHE,
                "self.enter(request, min(computed + num_new_tokens, request.num_tokens))",
                "self.enter(request, min(computed, request.num_tokens))",
            ),
        ),
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "loads_cached_at_once": one(
        "blocks being loaded enter the cache only when the load is done",
        SCHEDULER,
        "enter_cache=not loads",
        "enter_cache=True",
        noticed_by="0.16.0/connector_fail-2",
    ),
    "hits_take_the_latest_duplicate": Mutant(
        "of several blocks with one hash a hit takes the earliest entered",
        (
            (
                RUNS,
                "if singles is not None and key < run_begins:\n"
                "                    key = _add_single_hits(hits, singles, key, min(run_begins, end))\n",
                "if singles is not None:\n"
                "                    key = _add_single_hits(hits, singles, key, end)\n",
            ),
            (RUNS, "hits.add(next(iter(copies)), 1)", "hits.add(next(reversed(copies)), 1)"),
            (
                POOL,
                "return found if isinstance(found, int) else next(iter(found))",
                "return found if isinstance(found, int) else next(reversed(found))",
            ),
        ),
        noticed_by="0.16.0/async_spec-0",
    ),
    "duplicates_not_entered": Mutant(
        "duplicates of a cached block are cached beside it",
        (
            (RUNS, "singles = self._singles.setdefault(chain, {})", "singles = {}"),
            (RUNS, "single.first_key, single.num_keyed = key, 1", "pass"),
            (POOL, "cached[key] = {found: None, block: None}", "self.key_of_block[block] = None"),
        ),
        noticed_by="0.16.0/connector_fail-2",
    ),
    "drafter_keeps_last_hit": Mutant(
        "with eagle the last hit block is computed again",
        (
            (PLAIN, "if self.drop_last_hit:", "if False:"),
            (GROUP, "        if drop_last:\n", "        if False:\n"),
        ),
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "slots_beyond_the_model_length": one(
        "slots never exceed the model's length",
        PLAIN,
        "min(tokens + num_lookahead_tokens, self.max_model_len)",
        "(tokens + num_lookahead_tokens)",
        noticed_by="0.16.0/model_len-1",
    ),
    "adapter_not_hashed": Mutant(
        "the adapter is part of every block's hash",
        (
            (
                HASHES,
                "if index == 0 and request.lora_name is None and request.cache_salt is None:",
                "if index == 0 and request.cache_salt is None:",
            ),
            (
                HASHES,
                "(None, pieces, request.lora_name, request.cache_salt)",
                "(None, pieces, None, request.cache_salt)",
            ),
        ),
        noticed_by="0.16.0/lora-3",
    ),
    "salt_not_hashed": Mutant(
        "the cache salt is part of the first block's hash",
        (
            (
                HASHES,
                "if index == 0 and request.lora_name is None and request.cache_salt is None:",
                "if index == 0 and request.lora_name is None:",
            ),
            (
                HASHES,
                "(None, pieces, request.lora_name, request.cache_salt)",
                "(None, pieces, request.lora_name, None)",
            ),
        ),
        noticed_by="0.16.0/salt_skip-1",
    ),
    "hashes_not_chained": one(
        "a block's hash covers everything before it",
        HASHES,
        "origin = (request.block_keys[-1], pieces, None, None)",
        "origin = (0, pieces, None, None)",
        noticed_by="0.16.0/combined-1",
    ),
    "skipping_readers_read": one(
        "requests that skip the cache do not read it",
        SCHEDULER,
        "if kv_cache.caching and not request.skip_reading_prefix_cache:",
        "if kv_cache.caching:",
        noticed_by="0.16.0/salt_skip-1",
    ),
    "reset_with_blocks_in_use": Mutant(
        "the prefix cache is not reset while blocks are in use",
        (("scheduler/kv_cache/interface.py", "if self.num_used_blocks:", "if False:"),),
        noticed_by="0.16.0/reset-1",
    ),
    "reset_preempts_from_the_front": one(
        "a reset preempts from the tail, so that the order survives",
        LIFE,
        "request = self.running.pop()",
        "request = self.running.pop(0)",
        noticed_by="0.16.0/async_reset-0",
    ),
    "window_one_short": one(
        "the next token sees itself and window - 1 tokens before it",
        WINDOWS,
        "return max(0, num_computed_tokens - self.window + 1)",
        "return max(0, num_computed_tokens - self.window)",
        noticed_by="0.16.0/sliding-2",
    ),
    "window_hit_one_block_longer": one(
        "a window hit needs the blocks of window - 1 tokens",
        WINDOWS,
        "needed = -(-(self.window - 1) // size) + drop_last",
        "needed = -(-(self.window + size - 1) // size) + drop_last",
        noticed_by="0.16.0/sliding-2",
    ),
    "windows_dropped_in_order": one(
        "blocks fall out of a window highest index first",
        WINDOWS,
        "self.pool.release(dropped)",
        "self.pool.release(dropped[::-1])",
        noticed_by="0.16.0/chunked_local-0",
    ),
    "windows_hold_on_if_allocation_fails": one(
        "blocks out of sight are given back even if the allocation then fails",
        CACHE,
        "        if self._droppers:\n            self._drop_skipped(request, computed)\n        needed = 0\n",
        "        needed = 0\n        if sum(m.blocks_missing(request, num_slots) for m in self.managers) > "
        "self.block_pool.free_queue.size:\n            return False\n"
        "        if self._droppers:\n            self._drop_skipped(request, computed)\n",
        noticed_by="0.16.0/hybrid_sizes-0",
    ),
    "window_skips_need_memory": one(
        "in a first allocation blocks already out of sight need no memory",
        WINDOWS,
        "- max(skipped, len(hits))",
        "- len(hits)",
        noticed_by=TESTS + "test_blocks_that_external_tokens_put_out_of_sight_need_no_memory",
    ),
    "chunk_hits_start_too_early": one(
        "before the chunk of the last token looked up nothing need be cached",
        WINDOWS,
        "first = self.num_skipped_tokens(max_tokens) // self.block_size",
        "first = 0",
        noticed_by="0.16.0/chunked_local-0",
    ),
    "chunk_of_the_last_token": one(
        "everything before the chunk of the next token is dropped",
        WINDOWS,
        "return num_computed_tokens // self.spec.chunk * self.spec.chunk",
        "return max(num_computed_tokens - 1, 0) // self.spec.chunk * self.spec.chunk",
        noticed_by="0.16.0/chunked_local-0",
    ),
    "hits_not_aligned_over_groups": one(
        "hits over groups are multiples of the common block size",
        LOOKUP,
        "alignment, once = self._alignment, self",
        "alignment, once = 1, self",
        noticed_by=TESTS + "test_hits_over_groups_of_different_block_sizes_are_multiples_of_the_larger",
    ),
    "two_kinds_in_two_passes": one(
        "full attention and one other kind agree in a single pass",
        LOOKUP,
        "one_pass = full_first and len(self._spec_sets) == 2",
        "one_pass = False",
        noticed_by="0.16.0/hybrid-3",
    ),
    "full_groups_not_cut": one(
        "full groups are cut to the length that all groups have",
        LOOKUP,
        "shorten(blocks_found, length // spec_set.manager.block_size)",
        "pass",
        noticed_by="0.16.0/hybrid_sizes-0",
    ),
    "external_blocks_last": one(
        "blocks for external tokens are taken group by group before new ones",
        CACHE,
        "        if num_external_tokens:\n            for manager in self.managers:\n"
        "                manager.extend(request, computed)\n",
        "",
        noticed_by=TESTS + "test_blocks_for_external_tokens_come_before_new_ones_in_every_group",
    ),
    "common_prefix_of_the_running": Mutant(
        "common prefix blocks are shared by all who hold blocks",
        (
            (PLAIN, "if num_holders != len(self.holders):", "if num_holders < 2:"),
            (
                CACHE,
                "self.block_pool.ref_counts[block] != len(self.holders)",
                "self.block_pool.ref_counts[block] < 2",
            ),
        ),
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "state_chunks_not_cut": one(
        "with mamba align prefill chunks end at block boundaries",
        CACHE,
        "return last - num_computed_tokens if end >= last else num_tokens // size * size",
        "return num_tokens",
        noticed_by="0.16.0/mamba-3",
    ),
    "states_keep_one_block_more": one(
        "only the state before the next token stays",
        WINDOWS,
        "        return 2\n",
        "        return 2 + self.block_size\n",
        noticed_by="0.16.0/mamba-3",
    ),
}
