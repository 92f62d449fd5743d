"""The free queue: every block nobody refers to, in the order in which blocks will be handed out.

A doubly linked list threaded through two plain integer lists, so that a block anywhere in the queue can be
taken out in constant time (a prefix hit on a free block does that). Block 0, the null block, is never free
and serves as the list's end marker: `next[0]` is the head, `prev[0]` the tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class FreeQueue:
    """Free block ids from head (next to be handed out) to tail. Starts as 1, 2, …, num_blocks - 1."""

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
