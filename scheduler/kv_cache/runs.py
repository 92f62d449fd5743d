"""Blocks in runs: the pool of a plain KV cache, at a price per run where nobody can tell the difference.

A request takes blocks, fills them with one text, and gives them back as it took them. Such a *run* needs no
count and no key of each block: its keys are consecutive, so one number describes them all, and in the free
queue it is a single entry. A run is cut in two where another text that hits it goes its own way; what both
have in common is then a run with two holders. Ids, the order of the free queue, hits and evictions are those
of `pool.BlockPool`, block for block.

The prefix cache lists the runs of each chain of keys (keys equal but for their last `ROOM_BITS` bits) by
their first key. Where several requests have computed the same text, their runs are cut alike and stand in one
column, in the order in which they were entered: the first one is hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Protocol

from scheduler.kv_cache.hashes import ROOM_BITS
from scheduler.kv_cache.interface import NULL_BLOCK, PrefixHits
from scheduler.kv_cache.keys import BlockKeys
from scheduler.kv_cache.run_queue import OPEN, BlockRun, RunQueue
from scheduler.request import Request


class RunWatcher(Protocol):
    """Somebody who brings the `num_cached_blocks` of holders up to date only when it matters."""

    def catch_up(self, holder: Request) -> None:
        """Others look at this request's blocks: its `num_cached_blocks` must be right now."""

    def note_met(self, holder: Request) -> None:
        """Others compute the same text: the request's next block can no longer be entered unseen."""


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


@cache
def _all_blocks(num_blocks: int) -> tuple[int, ...]:
    """As the first run has them: it is handed out from the end. The numbers are the same in all engines."""
    return tuple(range(num_blocks - 1, NULL_BLOCK, -1))


def _eldest(run: BlockRun) -> BlockRun:
    """The first run of its column."""
    elder = run.elder
    while elder is not None and elder.twin is not None:
        run, elder = elder, elder.elder
    return run


class RunPool:
    """The blocks of one engine whose only KV group is full attention. Same laws as `BlockPool`."""

    def __init__(
        self, num_blocks: int, holders: dict[int, Request], *, reuse_unhashed_first: bool = False
    ) -> None:
        self.num_blocks = num_blocks
        self.holders = holders
        self.reuse_unhashed_first = reuse_unhashed_first
        self.free_queue = RunQueue()
        self.num_cached_free = 0
        self.num_evictions = 0
        self.num_freed = 0
        self.watcher: RunWatcher | None = None
        self.no_hits = RunHits()
        self._chains: dict[int, BlockRun] = {}
        """The first run of each chain, by the chain's number: a key without its last `ROOM_BITS` bits."""
        self.free_queue.append(BlockRun(None, 0, list(_all_blocks(num_blocks))))

    # --- out of the free queue and back -----------------------------------------------------------------

    def take(self, count: int, unkeyed: list[int] | None = None) -> list[int]:
        """Hand out `count` blocks from the head of the free queue; those that carry a key are evicted.

        The places in the result of those that carry none are appended to `unkeyed`.
        """
        queue = self.free_queue
        taken: list[int] = []
        while count > 0:
            run = queue.first
            assert run is not None
            blocks = run.blocks
            left = len(blocks) - count
            if left < 0:
                left = 0
            evicted = run.num_keyed - left
            if evicted > 0 and left and (run.twin is not None or run.elder is not None):
                self._cut(run, left)
                continue
            num_taken = len(blocks) - left
            if unkeyed is not None:
                first = len(taken)
                unkeyed += range(first, first + num_taken - max(evicted, 0))
            if evicted > 0:
                self.num_cached_free -= evicted
                self.num_evictions += evicted
                if left:
                    run.num_keyed = left
                else:
                    self._strip(run)
            count -= num_taken
            if not left:
                queue.remove(run)
            elif num_taken == 1:
                queue.size -= 1
                blocks = [blocks.pop()]
            else:
                queue.size -= num_taken
                blocks = blocks[left:]
                del run.blocks[left:]
            blocks.reverse()
            if taken:
                taken += blocks
            else:
                taken = blocks
        return taken

    def touch(self, hits: RunHits, request: Request) -> list[int]:
        """One more holder for each block hit; free ones leave the queue. Returns the blocks in order."""
        blocks: list[int] = []
        for run, count in zip(hits.runs, hits.counts):  # noqa: B905
            if run.holder is not None or count < len(run.blocks):
                run = self._cut(run, count)
            if run.sharers is None:
                self.free_queue.remove(run)
                self.num_cached_free -= count
                run.sharers = [request]
            else:
                run.sharers.append(request)
            request.block_runs.append(run)
            blocks += run.blocks
        return blocks

    def release(self, request: Request) -> None:
        """Give a request's table back, last block first.

        With `reuse_unhashed_first` what cannot be hit goes before the head of the free queue, else all to the
        tail.
        """
        table = request.block_tables[0]
        end = len(table)
        unhashed: list[int] = []
        for run in reversed(request.block_runs):
            if run.holder is not None:
                run.num_keyed = run.keyed()
                if not run.num_keyed and run.first_key is not None:
                    self._strip(run)
                start = run.start
                run.blocks = table[start:end] if start or end < len(table) else table
                run.holder = None
                end = start
                if not run.blocks:
                    continue
            else:
                sharers = run.sharers
                assert sharers is not None
                end -= len(run.blocks)
                if len(sharers) > 1:
                    sharers.remove(request)
                    continue
                run.sharers = None
            self.num_freed += len(run.blocks)
            self.num_cached_free += run.num_keyed
            if self.reuse_unhashed_first and run.num_keyed < len(run.blocks):
                unhashed += reversed(run.blocks[run.num_keyed :])
                del run.blocks[run.num_keyed :]
                if not run.blocks:
                    continue
            self.free_queue.append(run)
        if unhashed:
            unhashed.reverse()
            self.free_queue.prepend(BlockRun(None, 0, unhashed))

    # --- prefix cache -----------------------------------------------------------------------------------

    def find_hits(self, keys: BlockKeys, limit: int) -> RunHits:
        """What is hit by the first `limit` keys, as far as all are found. Changes nothing."""
        if not limit or keys.firsts[0] >> ROOM_BITS not in self._chains:
            return self.no_hits
        hits = RunHits()
        for stretch, first in enumerate(keys.firsts):
            key, i, end = first, keys.starts[stretch], min(keys.end(stretch), limit)
            run = self._chains.get(key >> ROOM_BITS)
            while run is not None and i < end and key == run.first_key:
                count = min(self._num_keyed(run), end - i)
                if not count:
                    break
                hits.add(run, count)
                i += count
                key += count
                run = run.further
            if i < end or end == limit:
                break
        return hits

    def claim(self, run: BlockRun, key: int) -> bool:
        """Whether an own run may hold `key` and the keys after it unseen; if not, see `enter`."""
        last = self._chains.get(key >> ROOM_BITS)
        if last is None:
            self._chains[key >> ROOM_BITS] = run
            run.first_key = key
            return True
        while last.further is not None:
            last = last.further
        if last.holder is not None and last.end == OPEN:
            self._close_met(last)
            return self.claim(run, key)
        assert last.first_key is not None
        if last.first_key + last.keyed() > key:
            return False
        last.further = run
        run.first_key = key
        return True

    def close(self, run: BlockRun, end: int) -> BlockRun:
        """The run ends before block `end` of its table, where another text begins; returns that text's."""
        if run.start == end:
            self._strip(run)
            return run
        run.end = end
        assert run.holder is not None
        last = BlockRun(run.holder, end, [])
        run.holder.block_runs.append(last)
        return last

    def enter(self, request: Request, first: int, end: int) -> int:
        """Enter blocks of a table from `first` on, at most up to `end`, whose text others have computed too.

        They leave the request's last run, which begins with `first` and has no keys. Returns where the next
        block to enter is.
        """
        keys = request.block_keys
        key = keys[first]
        end = min(keys.end_behind(first), end)
        before: BlockRun | None = None
        run: BlockRun | None = self._chains[key >> ROOM_BITS]
        while run is not None:
            assert run.first_key is not None
            if run.first_key + run.keyed() > key:
                break
            before, run = run, run.further
        assert run is not None
        run_begins = run.first_key
        assert run_begins is not None
        entered = BlockRun(None, 0, [])
        entered.sharers = [request]
        entered.first_key = key
        if run_begins > key:
            end = min(end, first + run_begins - key)
            entered.further = run
            if before is None:
                self._chains[key >> ROOM_BITS] = entered
            else:
                before.further = entered
        else:
            if run.holder is not None:
                run = self._cut(run, run.keyed())
            if run_begins < key:
                self._cut(run, key - run_begins)
                run = run.further
                assert run is not None
            if end - first < run.num_keyed:
                self._cut(run, end - first)
            else:
                end = first + run.num_keyed
            youngest = run.elder or run
            youngest.twin, entered.elder, run.elder = entered, youngest, entered
        entered.blocks = request.block_tables[0][first:end]
        entered.num_keyed = end - first
        request.block_runs[-1].start = end
        request.block_runs.insert(-1, entered)
        return end

    def _close_met(self, run: BlockRun) -> None:
        """Somebody else computes the text of an open run: what is entered of it stays, the rest is seen."""
        holder = run.holder
        assert holder is not None
        keyed = self._num_keyed(run)
        if keyed:
            self._cut(run, keyed)
        self._strip(run)
        if self.watcher is not None:
            self.watcher.note_met(holder)

    def _cut(self, run: BlockRun, count: int) -> BlockRun:
        """Cut a run behind its first `count` keyed blocks, and all of its column alike.

        Returns the first part, which is no own run any more: all its blocks have keys. An open run keeps its
        place in the chain even without keys: its holder goes on.
        """
        if run.holder is not None:
            return self._cut_own(run, count)
        front = _eldest(run)
        eldest: BlockRun | None = None
        above: BlockRun | None = None
        part: BlockRun | None = front
        while part is not None:
            if count < len(part.blocks):
                rest = self._cut_listed(part, count)
                if rest.first_key is not None:
                    if eldest is None or above is None:
                        rest.further, front.further = front.further, rest
                        eldest = rest
                    else:
                        above.twin, rest.elder, eldest.elder = rest, above, rest
                    above = rest
            part = part.twin
        return run

    def _cut_listed(self, run: BlockRun, count: int) -> BlockRun:
        """The rest of a shared or free run, with its holders or its place in the queue."""
        rest = BlockRun(None, 0, run.blocks[count:])
        rest.num_keyed = run.num_keyed - count
        if rest.num_keyed:
            assert run.first_key is not None
            rest.first_key = run.first_key + count
        if run.sharers is None:
            self.free_queue.size -= len(rest.blocks)
            self.free_queue.insert_before(rest, run)
        else:
            rest.sharers = run.sharers.copy()
            for request in run.sharers:
                runs = request.block_runs
                runs.insert(runs.index(run) + 1, rest)
        del run.blocks[count:]
        run.num_keyed = count
        return rest

    def _cut_own(self, run: BlockRun, count: int) -> BlockRun:
        holder = run.holder
        assert holder is not None
        assert run.first_key is not None
        start = run.start
        blocks = holder.block_tables[0][start : start + count]
        if start + count == run.end:
            run.holder, run.blocks, run.num_keyed, run.sharers = None, blocks, count, [holder]
            return run
        front = BlockRun(None, 0, blocks)
        front.num_keyed, front.first_key, front.sharers = count, run.first_key, [holder]
        holder.block_runs.insert(holder.block_runs.index(run), front)
        self._replace(run, front)
        front.further = run
        run.start += count
        run.first_key += count
        return front

    def _replace(self, run: BlockRun, other: BlockRun | None) -> None:
        """Put another run, or what is then the next one, in a run's place in its chain."""
        assert run.first_key is not None
        chain = run.first_key >> ROOM_BITS
        before = self._chains[chain]
        if before is not run:
            while before.further is not run:
                assert before.further is not None
                before = before.further
            before.further = other
        elif other is not None:
            self._chains[chain] = other
        else:
            del self._chains[chain]

    def _strip(self, run: BlockRun) -> None:
        """The run has no keys any more, and none reserved."""
        elder, twin = run.elder, run.twin
        if elder is None:
            self._replace(run, run.further)
        elif elder.twin is None:  # it is the eldest
            assert twin is not None
            twin.elder = elder if elder is not twin else None
            twin.further = run.further
            self._replace(run, twin)
        else:
            after = twin or _eldest(elder)
            elder.twin = twin
            after.elder = elder if elder is not after else None
        run.elder = run.twin = run.further = None
        run.first_key = None
        run.num_keyed = 0

    def _num_keyed(self, run: BlockRun) -> int:
        if run.holder is not None and self.watcher is not None:
            self.watcher.catch_up(run.holder)
        return run.keyed()

    # --- for those who look from outside; these cost time in proportion to blocks -------------------------

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache; others with the same key stay."""
        for run in list(self._cached_runs()):
            blocks = self._keyed_blocks(run)
            if block not in blocks:
                continue
            place = blocks.index(block)
            if run.holder is not None or place + 1 < len(run.blocks):
                run = self._cut(run, place + 1)
            if place:
                self._cut(run, place)
            self._strip(next(one for one in self._cached_runs() if self._keyed_blocks(one) == [block]))

    def forget_all(self) -> None:
        """Empty the prefix cache (no block may be held). The order of the free queue does not change."""
        for run in self.free_queue.runs():
            run.num_keyed, run.first_key = 0, None
            run.further = run.twin = run.elder = None
        self._chains.clear()
        self.num_cached_free = 0

    def find(self, key: int, group: int = 0) -> int:
        """The earliest entered block with this key, `NULL_BLOCK` if there is none."""
        for run in self._cached_runs():
            place = key - run.first_key if run.first_key is not None else -1
            if 0 <= place < self._num_keyed(run):
                return self._keyed_blocks(run)[place]
        return NULL_BLOCK

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be hit."""
        for run in self._cached_runs():
            yield from self._keyed_blocks(run)

    def cached_keys(self) -> Iterator[int]:
        """One key of every chain."""
        for run in self._chains.values():
            if run.first_key is not None:
                yield run.first_key

    def unshared_blocks(self, request: Request) -> list[int]:
        """Blocks that this request alone holds."""
        table, blocks = request.block_tables[0] if request.block_tables else [], []
        for run in request.block_runs:
            if run.holder is not None:
                blocks += table[run.start : run.end]
            elif run.sharers is not None and len(run.sharers) == 1:
                blocks += run.blocks
        return blocks

    @property
    def key_of_block(self) -> list[int | None]:
        """The key of each block, None where it cannot be hit."""
        keys: list[int | None] = [None] * self.num_blocks
        for run in self._cached_runs():
            assert run.first_key is not None
            for i, block in enumerate(self._keyed_blocks(run)):
                keys[block] = run.first_key + i
        return keys

    @property
    def ref_counts(self) -> list[int]:
        """The number of holders of each block."""
        counts = [0] * self.num_blocks
        for request in self.holders.values():
            for run in request.block_runs:
                own = run.holder is not None
                for block in request.block_tables[0][run.start : run.end] if own else run.blocks:
                    counts[block] = len(run.sharers or (request,))
        return counts

    def _cached_runs(self) -> Iterator[BlockRun]:
        """Every run with keys, in a column the eldest first."""
        for first in self._chains.values():
            column: BlockRun | None = first
            while column is not None:
                run: BlockRun | None = column
                while run is not None:
                    yield run
                    run = run.twin
                column = column.further

    def _keyed_blocks(self, run: BlockRun) -> list[int]:
        if run.holder is not None:
            return run.holder.block_tables[0][run.start : run.start + self._num_keyed(run)]
        return run.blocks[: run.num_keyed]
