"""A run of blocks, hits that name runs, and the free queue of runs: what `runs.RunPool` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scheduler.kv_cache.interface import PrefixHits
from scheduler.request import Request

OPEN: Final = 1 << 62


class BlockRun:
    """Consecutive blocks of a text that have the same holders.

    *Own*: the blocks `start` … `end` - 1 of `holder`'s table, which nobody else holds; `blocks` is that whole
    table. An *open* run is the last own one and reaches to the table's end, wherever that comes to be.
    *Shared*: `blocks`, in table order, held by each of `sharers`. *Free*: `blocks`, held by nobody, in the
    free queue between the runs `before` and `after`.

    The first `num_keyed` blocks can be hit (of an own run: see `keyed`), and the i-th of them has the key
    `first_key` + i; None if there is none. `is_single`: it is a single block, entered beside its chain.
    """

    __slots__ = (
        "after",
        "before",
        "blocks",
        "end",
        "first_key",
        "holder",
        "is_single",
        "num_keyed",
        "sharers",
        "start",
    )

    def __init__(self, holder: Request | None, start: int, blocks: list[int]) -> None:
        self.holder = holder
        self.start = start
        self.end = OPEN
        self.blocks = blocks
        self.sharers: list[Request] | None = None
        self.first_key: int | None = None
        self.num_keyed = 0
        self.is_single = False
        self.before: BlockRun | None = None
        self.after: BlockRun | None = None

    def keyed(self) -> int:
        """How many of its blocks can be hit."""
        if self.holder is None:
            return self.num_keyed
        if self.first_key is None:
            return 0
        return min(self.holder.num_cached_blocks[0], self.end) - self.start


class RunHits(PrefixHits):
    """Hits as leading parts of runs: the first `counts[i]` blocks of `runs[i]`, `num_free` without a holder.

    They are true until anything happens to the pool. `blocks` are named only once they are taken.
    """

    __slots__ = ("counts", "num_blocks", "num_free", "runs")

    def __init__(self) -> None:
        super().__init__([])
        self.runs: list[BlockRun] = []
        self.counts: list[int] = []
        self.num_blocks = 0
        self.num_free = 0

    def add(self, run: BlockRun, count: int) -> None:
        """Behind what has been hit so far."""
        self.runs.append(run)
        self.counts.append(count)
        self.num_blocks += count
        if run.holder is None and run.sharers is None:
            self.num_free += count

    def drop_last(self) -> None:
        """One block less, if there is any."""
        if not self.num_blocks:
            return
        run = self.runs[-1]
        self.num_blocks -= 1
        if run.holder is None and run.sharers is None:
            self.num_free -= 1
        self.counts[-1] -= 1
        if not self.counts[-1]:
            self.runs.pop()
            self.counts.pop()


class RunQueue:
    """The free queue: a doubly linked list of runs, each handed out last block first. `size` is in blocks."""

    __slots__ = ("first", "last", "size")

    def __init__(self) -> None:
        self.first: BlockRun | None = None
        self.last: BlockRun | None = None
        self.size = 0

    def append(self, run: BlockRun) -> None:
        """Put a run behind the tail."""
        last = self.last
        run.before = last
        if last is None:
            self.first = run
        else:
            last.after = run
        self.last = run
        self.size += len(run.blocks)

    def insert_before(self, run: BlockRun, place: BlockRun) -> None:
        """Put a run in front of another one."""
        before = place.before
        run.before, run.after = before, place
        place.before = run
        if before is None:
            self.first = run
        else:
            before.after = run
        self.size += len(run.blocks)

    def prepend(self, run: BlockRun) -> None:
        """Put a run before the head."""
        if self.first is None:
            self.append(run)
        else:
            self.insert_before(run, self.first)

    def remove(self, run: BlockRun) -> None:
        """Take a run out, wherever it stands."""
        before, after = run.before, run.after
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self.last = before
        else:
            after.before = before
        run.before = run.after = None
        self.size -= len(run.blocks)

    def runs(self) -> Iterator[BlockRun]:
        """From head to tail."""
        run = self.first
        while run is not None:
            yield run
            run = run.after

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        for run in self.runs():
            yield from reversed(run.blocks)
