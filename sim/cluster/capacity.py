"""The longest request that a KV cache can hold: what can never fit is refused, not tried for ever."""

from __future__ import annotations

from scheduler import GroupKind, KVCacheConfig, KVGroupSpec


def kv_capacity_tokens(config: KVCacheConfig, max_num_batched_tokens: int, most_tokens: int) -> int:
    """Most tokens, up to `most_tokens`, that one request can have in the KV cache with nobody beside it.

    Block 0 is the null block and holds nothing. A group with a window or a chunk needs no more than that and
    the tokens of one step (rounded up to blocks, and one block more where the window starts inside a block).
    """
    usable = config.num_blocks - 1

    def fits(tokens: int) -> bool:
        return sum(_blocks(group, tokens, max_num_batched_tokens) for group in config.groups) <= usable

    low, high = 0, most_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _blocks(group: KVGroupSpec, tokens: int, max_num_batched_tokens: int) -> int:
    if group.kind is GroupKind.SLIDING:
        kept = min(tokens, group.window - 1 + max_num_batched_tokens)
        return -(-kept // group.block_size) + 1
    if group.kind is GroupKind.CHUNKED_LOCAL:
        tokens = min(tokens, group.chunk + max_num_batched_tokens)
    elif group.kind is GroupKind.MAMBA and group.mamba_mode == "none":
        return 1 + group.num_speculative_blocks
    return -(-tokens // group.block_size)
