"""Rules of the KV cache: when blocks are cached, hit, freed and reused."""

from __future__ import annotations

from tests.mutation.mutant import TESTS, Mutant, one
from tests.mutation.patterns import Edit

BLOCKS: dict[str, Mutant] = {
    "last_token_not_recomputed": Mutant(
        "a prefix hit covers at most all tokens but the last",
        (
            Edit("(__request.num_tokens - 1) // __size", "__request.num_tokens // __size", "find_hits"),
            Edit("longest = __request.num_tokens - 1", "longest = __request.num_tokens"),
        ),
        "0.16.0/connector_fail-3",
    ),
    "blocks_freed_head_first": one(
        "a request's blocks are freed tail first",
        "self.pool.release(reversed(__table))",
        "self.pool.release(__table)",
        "0.16.0/mamba-0",
    ),
    "shared_blocks_freed_head_first": one(
        "a request's shared blocks are freed tail first",
        "__run.sharers = None",
        "__run.sharers = None\n__run.blocks.reverse()",
        "0.16.0/spec_eagle-4",
    ),
    "runs_freed_head_first": one(
        "a request's own blocks are freed tail first",
        "reversed(self.runs_of.pop(__id))",
        "self.runs_of.pop(__id)",
        "0.16.0/spec_eagle-4",
    ),
    "freed_blocks_reused_first": Mutant(
        "freed blocks join the tail of the free queue",
        (
            Edit("self.free_queue.append(run)", "self.free_queue.prepend(run)"),
            Edit("self.free_queue.append_many(__blocks)", "self.free_queue.prepend_many(__blocks)"),
        ),
        "0.16.0/spec_eagle-4",
    ),
    "free_hits_cost_nothing": Mutant(
        "hits on free blocks use capacity too",
        (
            Edit("missing + num_free_hits", "missing"),
            Edit("__block != NULL_BLOCK and ref_counts[__block] == 0", "False"),
        ),
        "0.16.0/spec_eagle-4",
    ),
    "cached_after_the_step": Mutant(
        "blocks enter the cache when they are scheduled: the same step can hit them",
        (
            Edit(
                "self.enter(__request, min(tokens, __request.num_tokens))",
                "self.enter(__request, min(tokens - num_new_tokens, __request.num_tokens))",
            ),
            Edit(
                "self.enter(__request, min(computed + num_new_tokens, __request.num_tokens))",
                "self.enter(__request, min(computed, __request.num_tokens))",
            ),
        ),
        "0.16.0/spec_eagle-4",
    ),
    "ended_requests_keep_windows": one(
        "with a connector an ended request first gives back what has fallen out of its windows",
        "self.kv_cache.drop_out_of_sight(__request)",
        "None",
        "0.33.0-connector-groups/groups-25",
    ),
    "ended_windows_by_computed_tokens": one(
        "vLLM 0.16.0: an ended request's windows are those of all its known tokens",
        "__request.num_computed_tokens if __by_processed else __request.num_tokens",
        "__request.num_computed_tokens",
        "0.16.0-connector-groups/groups-89",
    ),
    "rooms_for_prompts_ignore_loads": one(
        "what lies before a load's window needs no room",
        "__request.num_computed_tokens + num_external_tokens + __hits",
        "__request.num_computed_tokens + __hits",
        "0.33.0-connector-groups/groups-90",
    ),
    "unseen_loads_take_blocks": one(
        "a load of which no token is attended to takes no block",
        "__manager.num_skipped_tokens(__computed) < __computed",
        "True",
        "0.33.0-connector-groups/groups-172",
    ),
    "loads_cached_at_once": one(
        "blocks being loaded enter the cache only when the load is done",
        "self.caching and enter_cache",
        "self.caching",
        "0.16.0/connector_fail-2",
        places=2,
    ),
    "hits_take_the_latest_duplicate": Mutant(
        "of several blocks with one hash a hit takes the earliest entered",
        (
            Edit(
                "if singles is not None and __key < __begin:\n"
                "    __key = _add_single_hits(__hits, singles, __key, min(__begin, __end))",
                "if singles is not None:\n    __key = _add_single_hits(__hits, singles, __key, __end)",
            ),
            Edit("next(iter(copies))", "next(reversed(copies))"),
            Edit("next(iter(found))", "next(reversed(found))", "BlockPool.find"),
        ),
        "0.16.0/async_spec-0",
    ),
    "duplicates_not_entered": Mutant(
        "duplicates of a cached block are cached beside it",
        (
            Edit("singles = self._singles.setdefault(__chain, {})", "singles = {}"),
            Edit("single.first_key, single.num_keyed = __key, 1", "pass"),
            Edit("cached[__key] = {found: None, block: None}", "self.key_of_block[block] = None"),
        ),
        "0.16.0/connector_fail-2",
    ),
    "open_runs_keep_their_claim": one(
        "a run gives up the keys ahead of it once somebody else computes its text",
        "runs is not None and runs[-1].holder is not None and runs[-1].end == OPEN",
        "False",
        "0.16.0/async_multiturn-0",
    ),
    "chains_claimed_twice": one(
        "text that a chain has already is entered block by block",
        "self._end_of_chain(__chain) > __key",
        "False",
        "0.16.0/combined-0",
    ),
    "drafter_keeps_last_hit": Mutant(
        "with eagle the last hit block is computed again",
        (
            Edit("if self.drop_last_hit:\n    __hits.drop_last()", "pass"),
            Edit("if drop_last:\n    shorten(__hits, len(__hits[0]) - 1)", "pass", places=3),
        ),
        "0.16.0/spec_eagle-4",
    ),
    "slots_beyond_the_model_length": one(
        "slots never exceed the model's length",
        "min(__tokens + num_lookahead_tokens, self.max_model_len)",
        "__tokens + num_lookahead_tokens",
        "0.16.0/model_len-1",
        places=4,
    ),
    "adapter_not_hashed": one(
        "the adapter is part of every block's hash",
        "__request.lora_name",
        "None",
        "0.16.0/lora-3",
        "BlockHasher",
        places=2,
    ),
    "salt_not_hashed": one(
        "the cache salt is part of the first block's hash",
        "__request.cache_salt",
        "None",
        "0.16.0/salt_skip-1",
        "BlockHasher",
        places=2,
    ),
    "hashes_not_chained": one(
        "a block's hash covers everything before it",
        "(__request.block_keys[-1], __pieces, None, None)",
        "(0, __pieces, None, None)",
        "0.16.0/combined-1",
    ),
    "skipping_readers_read": one(
        "requests that skip the cache do not read it",
        "__cache.caching and not __request.skip_reading_prefix_cache",
        "__cache.caching",
        "0.16.0/salt_skip-1",
        places=3,
    ),
    "reset_with_blocks_in_use": one(
        "the prefix cache is not reset while blocks are in use",
        "if self.num_used_blocks:\n    return False",
        "pass",
        "0.16.0/reset-1",
    ),
    "reset_preempts_from_the_front": one(
        "a reset preempts from the tail, so that the order survives",
        "self.running.pop()",
        "self.running.pop(0)",
        "0.16.0/async_reset-0",
    ),
    "window_one_short": one(
        "the next token sees itself and window - 1 tokens before it",
        "max(0, __computed - self.window + 1)",
        "max(0, __computed - self.window)",
        "0.16.0/sliding-2",
    ),
    "window_hit_one_block_longer": one(
        "a window hit needs the blocks of window - 1 tokens",
        "-(-(self.window - 1) // __size)",
        "-(-(self.window + __size - 1) // __size)",
        "0.16.0/sliding-2",
    ),
    "window_of_one_hits_what_is_not_cached": one(
        "a window of one token needs a cached block too, or nothing is hit",
        "max(-(-(self.window - 1) // __size) + drop_last, 1)",
        "-(-(self.window - 1) // __size) + drop_last",
        "0.16.0-found/window1",
    ),
    "windows_dropped_in_order": one(
        "blocks fall out of a window highest index first",
        "self.pool.release(dropped)",
        "self.pool.release(dropped[::-1])",
        "0.16.0/chunked_local-0",
    ),
    "windows_hold_on_if_allocation_fails": one(
        "blocks out of sight are given back even if the allocation then fails",
        "if self._droppers:\n    self._drop_skipped(__request, __computed)",
        "if sum(m.blocks_missing(__request, num_slots) for m in self.managers) > "
        "self.block_pool.free_queue.size:\n    return False\n"
        "if self._droppers:\n    self._drop_skipped(__request, __computed)",
        "0.16.0/hybrid_sizes-0",
    ),
    "window_skips_need_memory": one(
        "in a first allocation blocks already out of sight need no memory",
        "max(skipped, len(__hits))",
        "len(__hits)",
        TESTS + "test_blocks_that_external_tokens_put_out_of_sight_need_no_memory",
    ),
    "chunk_hits_start_too_early": one(
        "before the chunk of the last token looked up nothing need be cached",
        "first = self.num_skipped_tokens(__tokens) // self.block_size",
        "first = 0",
        "0.16.0/chunked_local-0",
    ),
    "chunk_of_the_last_token": one(
        "everything before the chunk of the next token is dropped",
        "__computed // self.spec.chunk * self.spec.chunk",
        "max(__computed - 1, 0) // self.spec.chunk * self.spec.chunk",
        "0.16.0/chunked_local-0",
    ),
    "hits_not_aligned_over_groups": one(
        "hits over groups are multiples of the common block size",
        "alignment, once = self.alignment, __once",
        "alignment, once = 1, __once",
        TESTS + "test_hits_over_groups_of_different_block_sizes_are_multiples_of_the_larger",
    ),
    "no_look_beyond_the_length": one(
        "who gives up the last hit block may look one block beyond the length",
        "length + size if __beyond else length",
        "length",
        "0.33.0-found/eagle_exact_ss_16_eagle_0",
    ),
    "one_kind_without_search": one(
        "several groups of one kind agree on a length as those of several kinds do",
        "len(self._spec_sets) > 1 or (__once and self._num_groups > 1)",
        "len(self._spec_sets) > 1",
        "0.33.0-found/ss_eagle_nsib-4",
    ),
    "boundary_beyond_the_hashes": one(
        "the boundary inside a block moves along with hashes that cover tokens ahead",
        "min(prompt, __request.num_tokens - self.hash_lookahead)",
        "prompt",
        "0.33.0-found/boundary_ahead_7",
    ),
    "boundary_stays": one(
        "the boundary inside a block is entered anew when it has moved",
        "self.pool.key_of_block[__block] != __key",
        "self.pool.key_of_block[__block] is None",
        "0.33.0-found/boundary_moves-0",
    ),
    "two_kinds_in_two_passes": one(
        "full attention and one other kind agree in a single pass",
        "one_pass = __two",
        "one_pass = False",
        "0.16.0/hybrid-3",
    ),
    "full_groups_not_cut": one(
        "full groups are cut to the length that all groups have",
        "shorten(blocks_found, __length)",
        "None",
        "0.16.0/hybrid_sizes-0",
    ),
    "external_blocks_last": one(
        "blocks for external tokens are taken group by group before new ones",
        "if __m.num_skipped_tokens(__count) < __count:\n    __m.extend(__request, __count)",
        "pass",
        TESTS + "test_blocks_for_external_tokens_come_before_new_ones_in_every_group",
    ),
    "common_prefix_of_the_running": one(
        "common prefix blocks are shared by all who hold blocks",
        "__holders != len(self.holders)",
        "__holders < 2",
        "0.16.0/spec_eagle-4",
        places=2,
    ),
    "state_chunks_not_cut": one(
        "with mamba align prefill chunks end at block boundaries",
        "num_tokens // self._size * self._size",
        "num_tokens",
        "0.16.0/mamba-3",
        "StateChunks.cut",
    ),
    "states_kept_to_the_end_with_eagle": one(
        "where the last hit block is computed again the last state is kept one block earlier",
        "max(num_tokens // self._size * self._size - self._dropped, 0)",
        "num_tokens // self._size * self._size",
        "0.33.0-found/mamba_spec_blocks",
    ),
    "last_state_beyond_the_hashes": one(
        "the last state is kept where hashes that cover tokens ahead end",
        "0 if __drafter.drops_last_hit else max(__drafter.hash_lookahead, 1)",
        "1",
        "0.33.0-found/mamba_chunks_ahead_5",
    ),
    "states_given_up": one(
        "a Mamba group gives up no hit for the drafter",
        "gives_up_last_hit = False",
        "gives_up_last_hit = True",
        "0.33.0-found/mamba_hits_drop",
    ),
    "no_hits_inside_blocks_of_states": one(
        "a hit may end at a block hash inside a block of states",
        "self.alignment = config.common_state_size",
        "pass",
        "0.33.0-found/mamba_inside_block",
    ),
    "kept_states_written_over": one(
        "a state inside a block that can be hit is copied before its request goes on",
        "self.pool.move_key(__block, copy[0])",
        "None",
        "0.33.0-found/mamba_inside_block",
    ),
    "states_inside_blocks_read_unwritten": one(
        "a state inside a block can be taken up only when the step that writes it is over",
        "self._being_written.add(key)",
        "None",
        "0.33.0-found/mamba_inside_read_30_0",
    ),
    "copies_read_unwritten": one(
        "a copied state can be taken up only when the step that copies it is over",
        "self._being_written.add(self.pool.key_of_block[block])",
        "None",
        "0.33.0-found/mamba_inside_read_30_1",
    ),
    "copies_free_at_once": one(
        "the copy of a state is held until the step is planned",
        "self._copied += copy",
        "self.pool.release(copy)",
        "0.33.0-found/mamba_inside_held",
    ),
    "hit_states_written_over": one(
        "a state hit inside a block is copied before the request goes on from it",
        "self._copies_hit = self._ends_inside(hits, num_computed_tokens)",
        "pass",
        "0.33.0-found/mamba_inside_block",
    ),
    "states_inside_blocks_kept_to_the_end_with_eagle": one(
        "the state entered inside a block is the one kept for a drafter that drops the last hit block",
        "boundary = max(boundary - self.hash_block_size, 0)",
        "pass",
        "0.33.0-found/mamba_inside_drop",
    ),
    "states_passed_by": one(
        "a state counts for a longer prompt only while no step runs over it, hashed or not",
        "if self.prompt_boundary.at_edges:\n    passed = num_unhashed_tokens // self.block_size",
        "pass",
        "0.33.0-found/mamba_session_ahead",
    ),
    "no_state_for_a_longer_prompt": one(
        "a state that ends a session's earlier text is entered once a hit on the longer prompt can use it",
        "self.at_edges or __boundary % self.block_size",
        "__boundary % self.block_size",
        "0.33.0-found/mamba_session_boundary",
    ),
    "chunks_run_over_the_next_boundary": one(
        "a chunk that starts inside a block of states ends at the next boundary",
        "computed - computed % size + size",
        "end",
        "0.33.0-found/mamba_mid_block",
    ),
    "wide_blocks_wait": one(
        "a block of states that no chunk can cover is computed in parts",
        "end - computed if size > self._largest_chunk else 0",
        "0",
        "0.33.0-found/mamba_wide_block",
    ),
    "short_ends_not_aligned": one(
        "a chunk that does not reach the prompt's end ends at a boundary, also behind the last full block",
        "if end >= request.num_tokens:\n    return end - computed",
        "if computed >= last:\n    return end - computed",
        "0.33.0-found/mamba_short_tail",
    ),
    "unfit_chunks_are_passed_over": one(
        "who could get no whole block of states holds up the rest",
        "if num_tokens == 0:\n    return STOP",
        "if num_tokens == 0:\n    return SET_ASIDE",
        "0.33.0-found/mamba_break2",
    ),
    "speculative_blocks_taken_anew": one(
        "speculative blocks before the last position move behind it",
        "length if is_first else length - speculative",
        "length",
        "0.16.0-found/mamba_spec_blocks",
    ),
    "states_for_lookahead": one(
        "a drafter's lookahead slots need no state",
        "ignores_lookahead = True",
        "ignores_lookahead = False",
        "0.33.0-found/mamba_spec_lookahead-12",
    ),
    "states_keep_one_block_more": one(
        "only the state before the next token stays",
        "return 2",
        "return 2 + self.block_size",
        "0.16.0/mamba-3",
        "MambaManager.window",
    ),
}
