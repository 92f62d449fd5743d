"""Blocks in runs against the pool of single blocks: the same random life, the same blocks at every turn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from scheduler import KVCacheConfig, Request
from scheduler.kv_cache.grouped import GroupedKVCache
from scheduler.kv_cache.interface import KVCache
from scheduler.kv_cache.keys import BlockKeys
from scheduler.kv_cache.plain import PlainKVCache
from scheduler.release import Rules, release
from scheduler.speculation import Drafter

SIZE = 4


class Caches:
    """Two caches, and for each request one object in either."""

    def __init__(self, random: Random, num_blocks: int, rules: Rules, drafter: Drafter) -> None:
        config = KVCacheConfig(num_blocks, SIZE)
        self.random = random
        self.runs = PlainKVCache(config, max_model_len=400, rules=rules, drafter=drafter)
        self.singles = GroupedKVCache(config, max_model_len=400, rules=rules, drafter=drafter)
        self.active: list[tuple[Request, Request]] = []
        self.num_requests = 0

    def admit(self) -> None:
        """Few texts, in pieces that other texts leave at any place; now and then nobody looks them up."""
        random = self.random
        prompt = [(1000, random.randint(1, 40))]
        if random.random() < 0.7:
            prompt.append((1000 * random.randint(2, 4) + SIZE * random.randint(0, 1), random.randint(1, 30)))
        if random.random() < 0.5:
            prompt.append((10_000 + 1000 * random.randint(0, 9), random.randint(1, 12)))
        self.num_requests += 1
        pair = Request(self.num_requests, prompt, 1000), Request(self.num_requests, prompt, 1000)
        look, chunk = random.random() < 0.8, random.randint(1, 60)
        allocated = []
        for cache, request in zip((self.runs, self.singles), pair, strict=True):
            hits = cache.find_hits(request) if look else cache.no_hits()
            new = min(chunk, request.num_tokens - hits.num_tokens)
            needed = cache.num_blocks_for(request, hits.num_tokens + new, hits, 0)
            allocated.append((needed, cache.allocate(request, new, hits=hits), hits.num_tokens + new))
            if allocated[-1][1]:
                request.num_computed_tokens = hits.num_tokens + new
        assert allocated[0] == allocated[1]
        if allocated[0][1]:
            self.active.append(pair)

    def grow(self) -> None:
        """The next chunk, or one more token of the answer: often the same as somebody else's."""
        pair = self.random.choice(self.active)
        chunk, token = self.random.randint(1, 20), 1000 * self.random.randint(1, 2)
        goes_on = self.random.random() < 0.9
        grown = []
        for cache, request in zip((self.runs, self.singles), pair, strict=True):
            lacking = request.num_tokens - request.num_computed_tokens
            if not lacking:
                position = request.num_tokens
                following = position + request.tokens.shifts[-1]
                request.tokens.append(position, following if goes_on else token)
                request.num_tokens += 1
                lacking = 1
            grown.append(cache.grow(request, min(chunk, lacking)))
            if grown[-1]:
                request.num_computed_tokens += min(chunk, lacking)
        assert grown[0] == grown[1]
        if not grown[0]:
            self.free(self.random.choice(self.active))

    def free(self, pair: tuple[Request, Request]) -> None:
        one, two = pair
        assert self.runs.pool.unshared_blocks(one) == self.singles.pool.unshared_blocks(two)
        assert self.runs.num_common_prefix_blocks(one) == self.singles.num_common_prefix_blocks(two)
        self.active.remove(pair)
        self.runs.free(one)
        self.singles.free(two)

    def forget(self) -> None:
        table = self.random.choice(self.active)[0].block_tables[0]
        block = self.random.choice(table)
        self.runs.pool.forget(block)
        self.singles.pool.forget(block)

    def step(self) -> None:
        chance = self.random.random()
        if not self.active or chance < 0.25:
            self.admit()
        elif chance < 0.86:
            self.grow()
        elif chance < 0.97:
            self.free(self.random.choice(self.active))
        elif chance < 0.995:
            self.forget()
        else:
            while self.active:
                self.free(self.active[-1])
            assert self.runs.reset()
            assert self.singles.reset()

    def compare(self) -> None:
        one, two = self.runs, self.singles
        assert list(one.pool.free_queue) == list(two.pool.free_queue)
        assert counts(one) == counts(two)
        assert one.pool.ref_counts == two.pool.ref_counts
        assert keyed(one.pool.key_of_block) == keyed(two.pool.key_of_block)
        assert sorted(one.pool.cached_blocks()) == sorted(two.pool.cached_blocks())
        for first, second in self.active:
            assert first.block_tables == second.block_tables
            assert first.num_cached_blocks == second.num_cached_blocks
            assert first.kv_quiet_until == second.kv_quiet_until


def counts(cache: KVCache) -> tuple[int, ...]:
    return (
        cache.num_free_blocks,
        cache.num_used_blocks,
        cache.num_cached_free_blocks,
        cache.num_evictions,
        cache.num_freed_blocks,
    )


def keyed(keys: Sequence[int | None]) -> list[bool]:
    return [key is not None for key in keys]


@pytest.mark.parametrize("seed", range(60))
def test_runs_give_the_blocks_that_single_blocks_give(seed: int) -> None:
    random = Random(seed)
    rules = release(random.choice(["0.16.0", "0.33.0"])).rules
    drafter = random.choice([Drafter(), Drafter(drops_last_hit=True)])
    caches = Caches(random, random.randint(12, 70), rules, drafter)
    for _ in range(300):
        caches.step()
        caches.compare()


def test_keys_are_kept_as_stretches_of_consecutive_ones() -> None:
    keys = BlockKeys()
    keys.append(5, 3)
    keys.append(100, 1)
    keys.length += 1
    assert list(keys) == [5, 6, 7, 100, 101]
    assert [keys[i] for i in (0, 2, 3, -1)] == [5, 7, 100, 101]
    assert [keys.end_behind(i) for i in range(5)] == [3, 3, 3, 5, 5]
    for length in (7, 4, 3, 1, 0):
        keys.truncate(length)
        assert list(keys) == [5, 6, 7, 100, 101][:length]


def test_what_nobody_shares_is_one_run_and_a_hit_cuts_it_once() -> None:
    config = KVCacheConfig(100, SIZE)
    cache = PlainKVCache(config, max_model_len=400)
    first, second = Request(1, [(1000, 200)], 9), Request(2, [(1000, 120), (5000, 80)], 9)
    assert cache.allocate(first, 200, hits=cache.find_hits(first))
    assert len(first.block_runs) == 1
    hits = cache.find_hits(second)
    assert len(first.block_runs) == 1, "a look alone changes nothing"
    assert cache.allocate(second, 80, hits=hits)
    assert [len(request.block_runs) for request in (first, second)] == [2, 2]
    assert first.block_runs[0] is second.block_runs[0]
