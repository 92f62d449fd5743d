"""The block pool: reference counts, the prefix cache and the free queue of one engine's KV blocks.

A block is an integer. It is *used* while its reference count is above zero, else it stands in the free queue;
a free block may still carry a key (*cached free*) and can be hit until it is handed out again, which evicts
it. All KV groups draw from this one pool, but each has its own table of cached blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.kv_cache.interface import NULL_BLOCK
from scheduler.kv_events import KVEventLog
from scheduler.request import Request


class FreeQueue:
    """Free block ids from head (next to be handed out) to tail. Starts as 1, 2, …, num_blocks - 1.

    A doubly linked list threaded through two plain integer lists, so that a block anywhere in the queue can
    be taken out in constant time (a prefix hit on a free block does that). Block 0, the null block, is never
    free and serves as the list's end marker: `next[0]` is the head, `prev[0]` the tail.
    """

    __slots__ = ("_next", "_prev", "size")

    def __init__(self, num_blocks: int) -> None:
        self._next = [*range(1, num_blocks), 0]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self.size = num_blocks - 1

    def pop_many(self, count: int) -> list[int]:
        """Take `count` blocks from the head; the caller has checked that there are as many."""
        following = self._next
        block = following[0]
        taken = []
        for _ in range(count):
            taken.append(block)
            block = following[block]
        following[0] = block
        self._prev[block] = 0
        self.size -= count
        return taken

    def append_many(self, blocks: Iterable[int]) -> None:
        """Put blocks behind the tail, in the given order."""
        following, previous = self._next, self._prev
        tail = previous[0]
        for block in blocks:
            following[tail] = block
            previous[block] = tail
            tail = block
            self.size += 1
        following[tail] = 0
        previous[0] = tail

    def prepend_many(self, blocks: Iterable[int]) -> None:
        """Put blocks before the head: the first of them will be handed out next."""
        following, previous = self._next, self._prev
        head = following[0]
        before = 0
        for block in blocks:
            following[before] = block
            previous[block] = before
            before = block
            self.size += 1
        following[before] = head
        previous[head] = before

    def remove(self, block: int) -> None:
        """Take one block out, wherever it stands."""
        following, previous = self._next, self._prev
        after, before = following[block], previous[block]
        following[before] = after
        previous[after] = before
        self.size -= 1

    def __iter__(self) -> Iterator[int]:
        block = self._next[0]
        while block:
            yield block
            block = self._next[block]

    def __len__(self) -> int:
        return self.size


class BlockPool:
    """All blocks of one engine. Block ids are 0 … num_blocks - 1; 0 is the null block."""

    __slots__ = (
        "_cached",
        "events",
        "free_queue",
        "group_of_block",
        "key_of_block",
        "num_blocks",
        "num_cached_free",
        "num_evictions",
        "num_freed",
        "ref_counts",
        "reuse_unhashed_first",
    )

    def __init__(self, num_blocks: int, num_groups: int, *, reuse_unhashed_first: bool = False) -> None:
        self.num_blocks = num_blocks
        self.reuse_unhashed_first = reuse_unhashed_first
        self.free_queue = FreeQueue(num_blocks)
        self.ref_counts = [0] * num_blocks
        self.key_of_block: list[int | None] = [None] * num_blocks
        self.group_of_block = [0] * num_blocks
        self._cached: list[dict[int, int | dict[int, None]]] = [{} for _ in range(num_groups)]
        self.num_cached_free = 0
        self.num_evictions = 0
        self.num_freed = 0
        self.events: KVEventLog | None = None

    @property
    def num_free(self) -> int:
        """Blocks in the free queue."""
        return self.free_queue.size

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks from the head of the free queue; those that carry a key are evicted."""
        ref_counts, keys = self.ref_counts, self.key_of_block
        blocks = self.free_queue.pop_many(count)
        for block in blocks:
            ref_counts[block] = 1
            if keys[block] is not None:
                self.num_cached_free -= 1
                self.num_evictions += 1
                self.forget(block)
        return blocks

    def unshared_blocks(self, request: Request) -> list[int]:
        """Blocks that this request alone holds, over all KV groups."""
        return [
            block
            for table in request.block_tables
            for block in table
            if block != NULL_BLOCK and self.ref_counts[block] == 1
        ]

    def touch(self, blocks: Iterable[int]) -> None:
        """One more holder for each block; free ones leave the queue. Null blocks are ignored."""
        ref_counts = self.ref_counts
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if ref_counts[block] == 0:
                self.free_queue.remove(block)
                self.num_cached_free -= 1
            ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less for each block, in the given order; those without holders join the free queue's
        tail. With `reuse_unhashed_first` those of them that cannot be hit go before its head instead.
        """
        ref_counts, keys = self.ref_counts, self.key_of_block
        freed = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            count = ref_counts[block] - 1
            ref_counts[block] = count
            if count == 0:
                freed.append(block)
                if keys[block] is not None:
                    self.num_cached_free += 1
        self.num_freed += len(freed)
        if self.reuse_unhashed_first:
            self.free_queue.prepend_many([block for block in freed if keys[block] is None])
            freed = [block for block in freed if keys[block] is not None]
        self.free_queue.append_many(freed)

    def enter(self, block: int, key: int, group: int) -> None:
        """Enter a used block in the prefix cache of `group`. Several blocks may carry the same key."""
        self.key_of_block[block] = key
        self.group_of_block[block] = group
        cached = self._cached[group]
        found = cached.get(key)
        if found is None:
            cached[key] = block
        elif isinstance(found, dict):
            found[block] = None
        elif found != block:
            cached[key] = {found: None, block: None}

    def move_key(self, block: int, other: int) -> None:
        """`other` is a copy of `block` from now on and found in its place; no event tells it."""
        key, group = self.key_of_block[block], self.group_of_block[block]
        assert key is not None
        self._discard(block, key)
        self.enter(other, key, group)

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache; others with the same key stay."""
        key = self.key_of_block[block]
        if key is None:
            return
        if self.events is not None:
            self.events.note_removed(key, self.group_of_block[block], block)
        self._discard(block, key)

    def _discard(self, block: int, key: int) -> None:
        self.key_of_block[block] = None
        cached = self._cached[self.group_of_block[block]]
        found = cached[key]
        if isinstance(found, dict):
            del found[block]
            if len(found) == 1:
                cached[key] = next(iter(found))
        else:
            del cached[key]

    def find(self, key: int, group: int) -> int:
        """The earliest entered block with this key, `NULL_BLOCK` if there is none."""
        found = self._cached[group].get(key, NULL_BLOCK)
        return found if isinstance(found, int) else next(iter(found))

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be found in the prefix cache of some group."""
        for cached in self._cached:
            for found in cached.values():
                if isinstance(found, int):
                    yield found
                else:
                    yield from found

    def cached_keys(self) -> Iterator[int]:
        """Keys of all cached blocks."""
        for cached in self._cached:
            yield from cached

    def forget_all(self) -> None:
        """Empty the prefix cache. The order of the free queue does not change."""
        if self.events is not None:
            self.events.note_cleared()
        self.key_of_block = [None] * self.num_blocks
        for cached in self._cached:
            cached.clear()
        self.num_cached_free = 0
