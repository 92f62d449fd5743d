"""Rules that no recorded run tells apart from their neighbours, each by a small case of its own."""

from __future__ import annotations

from scheduler import (
    EngineCore,
    GroupKind,
    KVCacheConfig,
    KVGroupSpec,
    Request,
    SchedulerConfig,
    SpeculativeConfig,
)
from scheduler.kv_cache.grouped import GroupedKVCache
from scheduler.policies import PriorityOrder
from scheduler.waiting import make_queue


def prompt(request_id: int, tokens: int, **fields: object) -> Request:
    return Request(request_id, ((1_000_000 * (request_id + 1), tokens),), 100, **fields)


def test_the_drafts_of_a_victim_leave_the_step_with_it() -> None:
    """Five blocks: requests 0 (less important) and 1 have two each, and both need a third at once."""
    config = SchedulerConfig(policy="priority", speculative=SpeculativeConfig("ngram", 2))
    engine = EngineCore(config, KVCacheConfig(6))
    for request in (prompt(0, 30, priority=1), prompt(1, 31)):
        engine.add_request(request)
    engine.running.reverse()
    output = engine.schedule()
    engine.update(output, lambda _: [[5], [5]])
    engine.propose_drafts(output, [2, 2])
    engine.state.running.sort(key=lambda request: request.request_id)  # the victim stands first
    output = engine.schedule()
    assert [request.request_id for request in output.preempted] == [0]
    assert output.scheduled_spec_decode_tokens == {1: 2}


def test_before_min_tokens_not_even_a_length_limit_ends_a_request() -> None:
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(10))
    request = Request(0, ((1, 5),), 3, min_tokens=5)
    engine.add_request(request)
    while engine.has_unfinished_requests():
        engine.update(engine.schedule(), lambda _: [[9]])
    assert request.num_output_tokens == 5


def test_requests_set_aside_under_priority_return_through_a_heap_of_their_own() -> None:
    """Seen in the queue's array once a key has changed inside the heap, as a session's next input does."""
    queue = make_queue(PriorityOrder())
    requests = [prompt(i, 1, arrival_time=float(i)) for i in range(3)]
    for request in requests:
        queue.add(request)
    requests[0].arrival_time = 9.0
    queue.put_back([queue.pop() for _ in range(3)])
    assert [entry.request.request_id for entry in queue._heap] == [1, 2, 0]


def test_hits_over_groups_of_different_block_sizes_are_multiples_of_the_larger() -> None:
    """Full attention has blocks of 32 tokens, the window group of 16: 48 cached tokens are a hit of 32."""
    full, sliding = KVGroupSpec(GroupKind.FULL, 32), KVGroupSpec(GroupKind.SLIDING, 16, window=17)
    cache = GroupedKVCache(
        KVCacheConfig(50, 16, groups=(full, sliding), hash_block_size=16), max_model_len=4096
    )
    first = prompt(0, 64)
    assert cache.allocate(first, 64)
    fourth = first.block_tables[1][3]
    cache.pool.forget(fourth)  # in the window group only the first 48 tokens are cached
    again = Request(1, ((1_000_000, 64), (7, 10)), 100)
    hits = cache.find_hits(again)
    assert hits.num_tokens == 32
    assert len(hits.blocks[0]) == 1


def test_blocks_that_external_tokens_put_out_of_sight_need_no_memory() -> None:
    """96 tokens come from outside and the window is 32: of seven blocks only the last three are needed."""
    group = KVGroupSpec(GroupKind.SLIDING, 16, window=32)
    cache = GroupedKVCache(KVCacheConfig(4, 16, groups=(group,)), max_model_len=4096)
    request = prompt(0, 112)
    assert cache.allocate(request, 16, hits=cache.no_hits(), num_external_tokens=96)
    assert request.block_tables[0] == [0, 0, 0, 0, 1, 2, 3]


def test_blocks_for_external_tokens_come_before_new_ones_in_every_group() -> None:
    groups = (KVGroupSpec(GroupKind.FULL, 16), KVGroupSpec(GroupKind.FULL, 16))
    cache = GroupedKVCache(KVCacheConfig(10, 16, groups=groups), max_model_len=4096)
    request = prompt(0, 48)
    assert cache.allocate(request, 16, hits=cache.no_hits(), num_external_tokens=32)
    assert request.block_tables == [[1, 2, 5], [3, 4, 6]]
