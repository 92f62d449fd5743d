"""The plain KV cache: one group of full attention, which is what most models have.

Everything is as in the coordinator; only the two things that happen to a decoding request every few steps, a
new block and a full one, are spelled out without the detour over groups.
"""

from __future__ import annotations

from scheduler.config import GroupKind, KVCacheConfig
from scheduler.kv_cache.coordinator import KVCache
from scheduler.request import Request


class PlainKVCache(KVCache):
    """A `KVCache` whose only group is full attention, hashed block by block."""

    def grow(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> bool:
        """See `KVCache.grow`."""
        size = self.hasher.block_size
        table = request.block_tables[0]
        tokens = request.num_computed_tokens + num_new_tokens
        slots = min(tokens + num_lookahead_tokens, self.max_model_len)
        missing = -(-slots // size) - len(table)
        if missing > 0:
            if missing > self.pool.free_queue.size:
                return False
            table += self.pool.take(missing)
        recomputing = tokens < request.high_water_tokens
        until = len(table) * size - num_lookahead_tokens
        if self.caching:
            known = min(tokens, request.num_tokens)
            if known >= request.next_full_tokens:
                self.enter(request, known)
            until = min(until, request.next_full_tokens - 1)
        request.kv_quiet_until = 0 if recomputing else min(until, self.max_model_len - 1)
        return True

    def enter(self, request: Request, num_tokens: int) -> None:
        """See `KVCache.enter`."""
        size = self.hasher.block_size
        first, full = request.num_cached_blocks[0], num_tokens // size
        keys, table, enter = request.block_keys, request.block_tables[0], self.pool.enter
        if len(keys) < full:
            self.hasher.extend(request)
        for i in range(first, full):
            enter(table[i], keys[i], 0)
        full = max(first, full)
        request.num_cached_blocks[0] = full
        request.next_full_tokens = (full + 1) * size


def build_kv_cache(
    config: KVCacheConfig,
    *,
    max_model_len: int,
    num_lookahead_tokens: int = 0,
    drop_last_hit: bool = False,
) -> KVCache:
    """The KV cache for a configuration: plain where that is enough."""
    spec = config.groups[0]
    plain = (
        len(config.groups) == 1
        and spec.kind is GroupKind.FULL
        and (not config.enable_caching or spec.block_size == config.hash_block_size)
    )
    return (PlainKVCache if plain else KVCache)(
        config,
        max_model_len=max_model_len,
        num_lookahead_tokens=num_lookahead_tokens,
        drop_last_hit=drop_last_hit,
    )
