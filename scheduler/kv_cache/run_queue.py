"""A run of blocks, and the free queue that keeps runs whole: what `runs.RunPool` is made of."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.request import Request

OPEN = 1 << 62


class BlockRun:
    """Consecutive blocks of one table that nobody else holds.

    Held: the blocks `start` … `end` - 1 of `holder`'s table (an open run reaches to the table's end). Free:
    `blocks`, in table order, of which the first `num_keyed` can be hit. The i-th keyed block has the key
    `first_key` + i; None if there is none.
    """

    __slots__ = ("blocks", "end", "first_key", "holder", "num_keyed", "start")

    def __init__(self, holder: Request | None, start: int) -> None:
        self.holder = holder
        self.start = start
        self.end = OPEN
        self.first_key: int | None = None
        self.blocks: list[int] = []
        self.num_keyed = 0

    def keyed(self) -> int:
        """How many of its blocks can be hit."""
        if self.first_key is None:
            return 0
        if self.holder is None:
            return self.num_keyed
        return min(self.holder.num_cached_blocks[0], self.end) - self.start


class RunQueue:
    """The free queue: a doubly linked list of single blocks and of runs, handed out last block first.

    A run's node is its first block. Block 0 marks both ends, as in `free_queue.FreeQueue`.
    """

    __slots__ = ("following", "previous", "runs", "size")

    def __init__(self, num_blocks: int) -> None:
        self.following = [0] * num_blocks
        self.previous = [0] * num_blocks
        self.runs: dict[int, BlockRun] = {}
        self.size = 0

    def append(self, node: int) -> None:
        """Put a node behind the tail; the caller keeps `size`."""
        tail = self.previous[0]
        self.following[tail] = node
        self.previous[node] = tail
        self.following[node] = 0
        self.previous[0] = node

    def insert_before(self, node: int, place: int) -> None:
        """Put a node in front of another one."""
        before = self.previous[place]
        self.following[before] = node
        self.previous[node] = before
        self.following[node] = place
        self.previous[place] = node

    def remove(self, node: int) -> None:
        """Take a node out, wherever it stands."""
        after, before = self.following[node], self.previous[node]
        self.following[before] = after
        self.previous[after] = before

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        node = self.following[0]
        while node:
            run = self.runs.get(node)
            if run is None:
                yield node
            else:
                yield from reversed(run.blocks)
            node = self.following[node]
