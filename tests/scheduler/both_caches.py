"""The plain KV cache and the grouped one side by side: whatever is done to both must leave them alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler import KVCacheConfig, Request
from scheduler.kv_cache.block_runs import RunHits
from scheduler.kv_cache.grouped import GroupedKVCache
from scheduler.kv_cache.interface import KVCache
from scheduler.kv_cache.plain import PlainKVCache
from scheduler.release import Rules
from scheduler.speculation import Drafter

SIZE = 4
"""Tokens a block."""

Pair = tuple[Request, Request]
"""One request, as either cache knows it."""


class BothCaches:
    """A cache of runs and one of single blocks, and the requests that hold blocks in them."""

    def __init__(
        self, num_blocks: int, *, rules: Rules | None = None, drafter: Drafter | None = None
    ) -> None:
        config = KVCacheConfig(num_blocks, SIZE)
        self.runs = PlainKVCache(config, max_model_len=400, rules=rules, drafter=drafter)
        self.singles = GroupedKVCache(config, max_model_len=400, rules=rules, drafter=drafter)
        self.active: list[Pair] = []
        self.num_requests = 0

    def request(self, prompt: Iterable[tuple[int, int]]) -> Pair:
        """A request with this prompt, which holds nothing yet."""
        prompt, self.num_requests = list(prompt), self.num_requests + 1
        return Request(self.num_requests, prompt, 1000), Request(self.num_requests, prompt, 1000)

    def admit(self, pair: Pair, chunk: int = 1000, *, look: bool = True) -> int | None:
        """Look its text up, or do not, and give it up to `chunk` tokens more; the tokens hit, or None if it
        found no room.
        """
        seen = []
        for cache, request in zip((self.runs, self.singles), pair, strict=True):
            hits = cache.find_hits(request) if look else cache.no_hits()
            new = min(chunk, request.num_tokens - hits.num_tokens)
            needed = cache.num_blocks_for(request, hits.num_tokens + new, hits, 0)
            seen.append((needed, cache.allocate(request, new, hits=hits), hits.num_tokens, new))
            if seen[-1][1]:
                request.num_computed_tokens = hits.num_tokens + new
        assert seen[0] == seen[1]
        _, admitted, num_hits, _ = seen[0]
        if not admitted:
            return None
        self.active.append(pair)
        return num_hits

    def grow(self, pair: Pair, chunk: int = 1, *, following: int | None = None) -> bool:
        """The next chunk of its prompt; behind it one more token, the one that goes on or `following`."""
        grown = []
        for cache, request in zip((self.runs, self.singles), pair, strict=True):
            lacking = request.num_tokens - request.num_computed_tokens
            if not lacking:
                position = request.num_tokens
                goes_on = position + request.tokens.shifts[-1]
                request.tokens.append(position, goes_on if following is None else following)
                request.num_tokens += 1
                lacking = 1
            grown.append(cache.grow(request, min(chunk, lacking)))
            if grown[-1]:
                request.num_computed_tokens += min(chunk, lacking)
        assert grown[0] == grown[1]
        return grown[0]

    def free(self, pair: Pair) -> None:
        one, two = pair
        assert self.runs.pool.unshared_blocks(one) == self.singles.pool.unshared_blocks(two)
        assert self.runs.num_common_prefix_blocks(one) == self.singles.num_common_prefix_blocks(two)
        self.active.remove(pair)
        self.runs.free(one)
        self.singles.free(two)

    def forget(self, block: int) -> None:
        self.runs.pool.forget(block)
        self.singles.pool.forget(block)

    def reset(self) -> None:
        while self.active:
            self.free(self.active[-1])
        assert self.runs.reset()
        assert self.singles.reset()

    def hit_blocks(self, prompt: Sequence[tuple[int, int]]) -> list[int]:
        """The blocks that a text would start from now, on which both must agree. Nobody takes them."""
        one, two = Request(0, prompt, 1), Request(0, prompt, 1)
        hits = self.runs.find_hits(one)
        assert isinstance(hits, RunHits)
        blocks: list[int] = []
        for run, count in zip(hits.runs, hits.counts, strict=True):
            start = 0 if run.holder is None else run.start
            blocks += run.blocks[start : start + count]
        assert blocks == self.singles.find_hits(two).blocks[0]
        assert hits.num_tokens == len(blocks) * SIZE
        return blocks

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
            assert first.next_kv_change_tokens == second.next_kv_change_tokens
            self.hit_blocks(first.tokens.pieces(0, first.num_tokens))


def counts(cache: KVCache) -> tuple[int, ...]:
    return (
        cache.num_free_blocks,
        cache.num_used_blocks,
        cache.num_cached_free_blocks,
        cache.num_evictions,
        cache.pool.num_freed,
    )


def keyed(keys: Sequence[int | None]) -> list[bool]:
    return [key is not None for key in keys]
