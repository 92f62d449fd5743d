"""Blocks in runs against the pool of single blocks: the same random life, the same blocks at every turn."""

from __future__ import annotations

from random import Random

import pytest

from scheduler import KVCacheConfig, Request
from scheduler.kv_cache.plain import PlainKVCache
from scheduler.release import release
from scheduler.speculation import Drafter
from scheduler.tokens import BlockKeys
from tests.scheduler.both_caches import SIZE, BothCaches


def admit(random: Random, caches: BothCaches) -> None:
    """Few texts, in pieces that other texts leave at any place; now and then nobody looks them up."""
    prompt = [(1000, random.randint(1, 40))]
    if random.random() < 0.7:
        prompt.append((1000 * random.randint(2, 4) + SIZE * random.randint(0, 1), random.randint(1, 30)))
    if random.random() < 0.5:
        prompt.append((10_000 + 1000 * random.randint(0, 9), random.randint(1, 12)))
    look, chunk = random.random() < 0.8, random.randint(1, 60)
    caches.admit(caches.request(prompt), chunk, look=look)


def grow(random: Random, caches: BothCaches) -> None:
    """The next chunk, or one more token of the answer: often the same as somebody else's."""
    pair = random.choice(caches.active)
    chunk, token = random.randint(1, 20), 1000 * random.randint(1, 2)
    if not caches.grow(pair, chunk, following=None if random.random() < 0.9 else token):
        caches.free(random.choice(caches.active))


def step(random: Random, caches: BothCaches) -> None:
    chance = random.random()
    if not caches.active or chance < 0.25:
        admit(random, caches)
    elif chance < 0.86:
        grow(random, caches)
    elif chance < 0.97:
        caches.free(random.choice(caches.active))
    elif chance < 0.995:
        table = random.choice(caches.active)[0].block_tables[0]
        caches.forget(random.choice(table))
    else:
        caches.reset()


@pytest.mark.parametrize("seed", range(60))
def test_runs_give_the_blocks_that_single_blocks_give(seed: int) -> None:
    random = Random(seed)
    rules = release(random.choice(["0.16.0", "0.33.0"])).rules
    drafter = random.choice([Drafter(), Drafter(drops_last_hit=True)])
    caches = BothCaches(random.randint(12, 70), rules=rules, drafter=drafter)
    for _ in range(300):
        step(random, caches)
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
    runs_of = cache.run_pool.runs_of
    assert len(runs_of[1]) == 1
    hits = cache.find_hits(second)
    assert len(runs_of[1]) == 1, "a look alone changes nothing"
    assert cache.allocate(second, 80, hits=hits)
    assert [len(runs_of[request_id]) for request_id in (1, 2)] == [2, 2]
    assert runs_of[1][0] is runs_of[2][0]
