"""Allocation, the order of the free queue, eviction, and when blocks enter the prefix cache."""

from __future__ import annotations

import pytest

from scheduler import GroupKind, KVGroupSpec, Request
from scheduler.kv_cache.pool import FreeQueue
from tests.scheduler.helpers import free_blocks, make_engine, make_requests, step


def test_blocks_are_handed_out_in_order_and_block_0_never() -> None:
    engine = make_engine(num_blocks=9)
    request, other = make_requests(2, prompt_tokens=40)
    engine.add_request(request)
    engine.add_request(other)
    step(engine)
    assert request.block_tables == [[1, 2, 3]]
    assert other.block_tables == [[4, 5, 6]]
    assert free_blocks(engine) == [7, 8]


def test_a_freed_table_joins_the_tail_of_the_queue_last_block_first() -> None:
    engine = make_engine(num_blocks=9)
    (request,) = make_requests(1, prompt_tokens=40)
    engine.add_request(request)
    step(engine)
    engine.abort_requests([0])
    assert free_blocks(engine) == [4, 5, 6, 7, 8, 3, 2, 1]


def test_a_block_anywhere_in_the_free_queue_can_be_taken_out() -> None:
    queue = FreeQueue(6)
    queue.remove(3)
    queue.remove(1)
    assert list(queue) == [2, 4, 5]
    queue.append_many([3])
    assert queue.pop_many(2) == [2, 4]
    assert list(queue) == [5, 3]
    assert len(queue) == 2


def test_a_request_admitted_later_in_the_same_step_hits_blocks_only_now_being_computed() -> None:
    engine = make_engine()
    first, second = make_requests(2, prompt_tokens=48, shared_tokens=32)
    engine.add_request(first)
    engine.add_request(second)
    output, _ = step(engine)
    assert output.num_scheduled_tokens == [48, 16]
    assert second.block_tables[0][:2] == first.block_tables[0][:2]


def test_a_fully_cached_prompt_computes_its_last_block_again_into_a_new_block() -> None:
    engine = make_engine()
    for i in range(2):
        engine.add_request(Request(i, ((1, 32),), 5))
    output, _ = step(engine)
    assert output.num_scheduled_tokens == [32, 16]
    first, second = engine.running
    assert first.block_tables[0][0] == second.block_tables[0][0]
    assert first.block_tables[0][1] != second.block_tables[0][1]


def test_of_duplicates_the_earliest_entered_is_hit_and_evicting_one_leaves_the_other() -> None:
    engine = make_engine(num_blocks=20)
    for i in range(2):
        engine.add_request(Request(i, ((1, 32),), 5))
    step(engine)
    first, second = engine.running
    pool = engine.kv_cache.pool

    def second_block_of_another() -> int:
        """The same two blocks of text and one token more: it starts from what is cached of them."""
        request = Request(9, ((1, 33),), 1)
        engine.add_request(request)
        assert engine.schedule().new == [request]
        block = request.block_tables[0][1]
        engine.abort_requests([9])
        return block

    assert second_block_of_another() == first.block_tables[0][1]
    pool.forget(first.block_tables[0][1])
    assert second_block_of_another() == second.block_tables[0][1]
    pool.forget(second.block_tables[0][1])
    assert second_block_of_another() not in (first.block_tables[0][1], second.block_tables[0][1])


def test_eviction_takes_the_longest_unused_block_and_counts() -> None:
    engine = make_engine(num_blocks=5)
    engine.add_request(Request(0, ((1, 33),), 1))
    step(engine)  # blocks 1 2 3; two full ones are cached
    assert free_blocks(engine) == [4, 3, 2, 1]
    assert engine.kv_cache.num_cached_free_blocks == 2
    engine.add_request(Request(1, ((5000, 40),), 1))
    step(engine)  # takes 4 3 2 and so evicts the second block of request 0
    assert engine.kv_cache.num_evictions == 1
    engine.add_request(Request(2, ((1, 33),), 1))
    output, _ = step(engine)
    assert output.num_computed_before == [16]


def test_a_decode_block_enters_the_cache_in_the_step_that_computes_its_last_token() -> None:
    engine = make_engine()
    (request,) = make_requests(1, prompt_tokens=31, max_tokens=3, ignore_eos=True)
    engine.add_request(request)
    step(engine)
    assert request.num_cached_blocks == [1]
    output = engine.schedule()  # computes the 32nd token
    assert request.num_cached_blocks == [2]
    engine.update(output, lambda _: [[5]])


def test_blocks_of_another_adapter_or_salt_are_not_hit() -> None:
    engine = make_engine()
    for i, (lora, salt) in enumerate(
        [(None, None), ("a", None), (None, "s"), ("a", None), (None, "s"), (None, None)]
    ):
        engine.add_request(Request(i, ((1, 40),), 5, lora_name=lora, cache_salt=salt))
    output, _ = step(engine)
    assert output.num_computed_before == [0, 0, 0, 32, 32, 32]


def test_skipping_the_prefix_cache_reads_nothing_counts_nothing_and_still_writes() -> None:
    engine = make_engine()
    engine.add_request(Request(0, ((1, 40),), 5, skip_reading_prefix_cache=True))
    engine.add_request(Request(1, ((1, 40),), 5, skip_reading_prefix_cache=True))
    engine.add_request(Request(2, ((1, 40),), 5))
    output, _ = step(engine)
    assert output.num_computed_before == [0, 0, 32]
    assert (engine.prefix_cache_stats.requests, engine.prefix_cache_stats.queries) == (1, 40)


def test_lookups_are_counted_at_every_attempt_but_saved_tokens_only_once() -> None:
    engine = make_engine(num_blocks=5, max_num_seqs=2)
    engine.add_request(Request(0, ((1, 40),), 3, ignore_eos=True))
    engine.add_request(Request(1, ((1, 32), (500, 30)), 1, ignore_eos=True))
    for _ in range(4):
        step(engine)
    stats = engine.prefix_cache_stats
    assert stats.hits == 32 * (stats.requests - 1)
    assert stats.requests > 2
    assert stats.saved_tokens == 32


def test_reset_is_refused_while_blocks_are_in_use_and_keeps_the_queue_order() -> None:
    engine = make_engine(num_blocks=9)
    engine.add_request(Request(0, ((1, 40),), 5))
    step(engine)
    assert engine.reset_prefix_cache() == (False, [])
    ok, preempted = engine.reset_prefix_cache(preempt_running=True)
    assert ok
    assert [request.request_id for request in preempted] == [0]
    assert engine.kv_cache.num_cached_free_blocks == 0
    assert free_blocks(engine) == [4, 5, 6, 7, 8, 3, 2, 1]


def test_a_sliding_window_gives_blocks_back_at_the_next_allocation() -> None:
    engine = make_engine(groups=(KVGroupSpec(GroupKind.SLIDING, 16, window=32),), max_num_batched_tokens=64)
    (request,) = make_requests(1, prompt_tokens=128)
    engine.add_request(request)
    step(engine)
    assert request.block_tables == [[1, 2, 3, 4]]
    step(engine)  # 64 computed: tokens 0 … 32 are out of sight, so are blocks 0 and 1
    assert request.block_tables[0][:4] == [0, 0, 3, 4]


def test_a_sliding_window_hits_a_run_as_long_as_the_window_with_null_blocks_before_it() -> None:
    engine = make_engine(groups=(KVGroupSpec(GroupKind.SLIDING, 16, window=32),), max_num_batched_tokens=64)
    engine.add_request(Request(0, ((1, 64),), 1))
    step(engine)
    engine.add_request(Request(1, ((1, 80),), 5))
    output, _ = step(engine)
    assert output.num_computed_before == [64]
    assert output.requests[0].block_tables[0][:4] == [0, 0, 3, 4]


def test_chunked_local_attention_needs_no_blocks_of_earlier_chunks() -> None:
    engine = make_engine(
        groups=(KVGroupSpec(GroupKind.CHUNKED_LOCAL, 16, chunk=32),), max_num_batched_tokens=64
    )
    engine.add_request(Request(0, ((1, 100),), 5))
    step(engine)
    output, _ = step(engine)
    assert output.requests[0].block_tables[0][:4] == [0, 0, 0, 0]


def test_groups_share_the_pool_and_a_hit_is_the_length_all_agree_on() -> None:
    groups = (KVGroupSpec(GroupKind.FULL, 16), KVGroupSpec(GroupKind.SLIDING, 16, window=32))
    engine = make_engine(groups=groups)
    engine.add_request(Request(0, ((1, 64),), 5))
    step(engine)
    (first,) = engine.running
    assert first.block_tables == [[1, 2, 3, 4], [5, 6, 7, 8]]
    engine.add_request(Request(1, ((1, 80),), 5))
    output, _ = step(engine)
    assert output.num_computed_before[1] == 64
    assert output.requests[1].block_tables[1][:4] == [0, 0, 7, 8]


@pytest.mark.parametrize(("num_blocks", "fits"), [(4, False), (5, True)])
def test_free_hit_blocks_use_capacity_too(num_blocks: int, fits: bool) -> None:
    engine = make_engine(num_blocks=num_blocks, max_num_batched_tokens=64)
    engine.add_request(Request(0, ((1, 33),), 1))
    step(engine)  # ended: all blocks free, two cached
    engine.add_request(Request(1, ((1, 33), (900, 20)), 5))
    output, _ = step(engine)  # 53 tokens: 2 hits out of the free queue and 2 new blocks
    assert bool(output.requests) is fits
