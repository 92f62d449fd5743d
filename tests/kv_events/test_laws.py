"""Laws of KV events: whoever follows them knows at every step what is in the prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler.engine_core
from scheduler import EngineCore, KVCacheConfig, Request, SchedulerConfig
from scheduler.kv_cache.plain import PlainKVCache
from scheduler.kv_cache.pool import BlockPool
from scheduler.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from sim.evidence.conform.case import Case, find_case_files, load_case
from sim.evidence.conform.replay import Replay

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = ["prefix_share-0", "async_preempt-1", "preempt_cache-1", "async_reset-0", "streaming-2", "combined-4"]
GROUPED = ["hybrid-1", "sliding-2", "chunked_local-1", "n_retention-2", "hybrid-3"]


def _cases(names: list[str]) -> Iterator[Case]:
    for path in find_case_files([GOLDEN / "0.16.0", GOLDEN / "0.33.0"]):
        if path.name.removesuffix(".json.gz") in names:
            yield load_case(path)


class _Subscriber:
    """Follows the events, as a router does; counts blocks by hash, for several may have the same."""

    def __init__(self) -> None:
        self.known: Counter[tuple[int, int]] = Counter()
        self.log: list[KVCacheEvent] = []

    def __call__(self, events: list[KVCacheEvent]) -> None:
        self.log += events
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.known.clear()
            elif isinstance(event, BlockStored):
                self.known.update((key, event.group_idx) for key in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.known.subtract((key, event.group_idx) for key in event.block_hashes)


def _cached(engine: EngineCore) -> Counter[tuple[int, int]]:
    pool = engine.kv_cache.pool
    groups = pool.group_of_block if isinstance(pool, BlockPool) else [0] * pool.num_blocks
    return Counter((key, groups[block]) for block, key in enumerate(pool.key_of_block) if key is not None)


def _follow(case: Case) -> _Subscriber:
    replay = Replay(case, plain=True)
    subscriber = _Subscriber()
    replay.engine.observe_kv_events(subscriber)
    for record in replay.records():
        if "u" in record:
            assert +subscriber.known == _cached(replay.engine), f"{case.name}, step {record['t']}"
    return subscriber


@pytest.mark.parametrize("case", list(_cases(PLAIN)), ids=lambda case: f"{case.release}-{case.name}")
def test_followers_of_a_plain_cache_know_it_and_a_grouped_one_tells_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(Replay(case, plain=True).engine.kv_cache, PlainKVCache)
    in_runs = _follow(case)
    monkeypatch.setattr(scheduler.engine_core, "plain_suffices", lambda *_, **__: False)
    block_by_block = _follow(case)
    assert in_runs.log == block_by_block.log
    assert {type(event) for event in in_runs.log} >= {BlockStored}


@pytest.mark.parametrize("case", list(_cases(GROUPED)), ids=lambda case: f"{case.release}-{case.name}")
def test_followers_of_several_groups_know_each(case: Case) -> None:
    subscriber = _follow(case)
    groups = len(case.config.get("groups", []))
    assert {key[1] for key in subscriber.known} == set(range(groups))


def test_enough_cases_are_followed() -> None:
    assert len(list(_cases(PLAIN))) >= 8
    assert len(list(_cases(GROUPED))) >= 6


def _engine() -> EngineCore:
    return EngineCore(SchedulerConfig(max_model_len=128), KVCacheConfig(num_blocks=8, block_size=4))


def _run(engine: EngineCore, *prompts: tuple[int, int]) -> None:
    for request_id, prompt in enumerate(prompts):
        engine.add_request(Request(request_id, [prompt], 1))
        output = engine.schedule()
        engine.update(output, lambda output: [[5] for _ in output.requests])


def test_a_listener_hears_what_was_stored_with_its_parent_and_what_it_pushed_out() -> None:
    heard: list[KVCacheEvent] = []
    engine = _engine()
    engine.observe_kv_events(heard.extend)
    _run(engine, (100, 10), (200, 22))
    first, second = (event for event in heard if isinstance(event, BlockStored))
    assert (first.parent_block_hash, first.token_ranges) == (None, ((100, 8),))
    assert second.token_ranges == ((200, 20),)
    removed = [event.block_hashes for event in heard if isinstance(event, BlockRemoved)]
    assert removed == [(first.block_hashes[1],)]
    assert first.as_wire() == {
        "type": "BlockStored",
        "block_hashes": list(first.block_hashes),
        "token_ids": list(range(100, 108)),
        "block_size": 4,
        "medium": "GPU",
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_listening_begins_before_the_first_request() -> None:
    engine = _engine()
    engine.add_request(Request(0, [(100, 10)], 1))
    with pytest.raises(ValueError, match="first request"):
        engine.observe_kv_events(lambda events: None)
