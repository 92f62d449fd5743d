"""Blocks in runs: the pool of a plain KV cache, at a price per run where nobody can tell the difference.

A request takes blocks, fills them with one text, and gives them back as it took them. Such a *run* needs no
count and no key of each block: its keys are consecutive, so one number describes them all, and in the free
queue it is a single entry. A run is cut in two where another text that hits it goes its own way; what both
have in common is then a run with two holders. Ids, the order of the free queue, hits and evictions are those
of `pool.BlockPool`, block for block.

The prefix cache lists the runs of each *chain* of keys (keys equal but for their last `ROOM_BITS` bits) in
the order of their keys, no key twice. Text that is computed by several requests at once is the exception: the
blocks of the later copies are entered one by one, as runs of a single block, in a dictionary by key. What is
hit is the chain's run where it has the key, else the earliest entered single block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Protocol

from scheduler.kv_cache.block_runs import OPEN, BlockRun, RunHits, RunQueue
from scheduler.kv_cache.hashes import ROOM_BITS
from scheduler.kv_cache.interface import NULL_BLOCK
from scheduler.kv_events import KVEventLog
from scheduler.request import Request
from scheduler.tokens import BlockKeys


class RunWatcher(Protocol):
    """Who brings the `num_cached_blocks` of requests up to date only when it matters (the cohort)."""

    def catch_up(self, holder: Request) -> None:
        """Others look at this request's blocks: its `num_cached_blocks` must be right now."""

    def note_equal_text(self, holder: Request) -> None:
        """Others compute the same text: the request's next full block must be entered by a call."""


@cache
def _all_blocks(num_blocks: int) -> tuple[int, ...]:
    """As the first run has them: it is handed out from the end. The numbers are the same in all engines."""
    return tuple(range(num_blocks - 1, NULL_BLOCK, -1))


class RunPool:
    """The blocks of one engine whose only KV group is full attention. Same laws as `BlockPool`."""

    def __init__(self, num_blocks: int, *, reuse_unhashed_first: bool = False) -> None:
        self.num_blocks = num_blocks
        self.reuse_unhashed_first = reuse_unhashed_first
        self.free_queue = RunQueue()
        self.num_cached_free = 0
        self.num_evictions = 0
        self.num_freed = 0
        self.watcher: RunWatcher | None = None
        self.events: KVEventLog | None = None
        self.no_hits = RunHits()
        self.runs_of: dict[int, list[BlockRun]] = {}
        """The runs of each holder's table in table order, by request id. The last one is its open run."""
        self._chains: dict[int, list[BlockRun]] = {}
        """The runs of each chain in the order of their keys, by the chain's number: a key without its last
        `ROOM_BITS` bits.
        """
        self._singles: dict[int, dict[int, dict[BlockRun, None]]] = {}
        """Blocks that were entered one by one, by the chain's number and then by key, the earliest first."""
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
            num_taken = len(blocks) - left
            if unkeyed is not None:
                first = len(taken)
                unkeyed += range(first, first + num_taken - max(evicted, 0))
            if evicted > 0:
                self.num_cached_free -= evicted
                self.num_evictions += evicted
                if self.events is not None:
                    assert run.first_key is not None
                    for i in range(run.num_keyed - 1, left - 1, -1):
                        self.events.note_removed(run.first_key + i, 0, blocks[i])
                if left:
                    run.num_keyed = left
                else:
                    self._uncache(run)
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

    def open_table(self, request: Request, hits: RunHits) -> list[int]:
        """A new table, with one more holder for each block hit; free ones of these leave the queue."""
        runs: list[BlockRun] = []
        table: list[int] = []
        for run, count in zip(hits.runs, hits.counts):  # noqa: B905
            if run.holder is not None or count < len(run.blocks):
                run = self._cut(run, count)
            if run.sharers is None:
                self.free_queue.remove(run)
                self.num_cached_free -= count
                run.sharers = [request]
            else:
                run.sharers.append(request)
            runs.append(run)
            table += run.blocks
        runs.append(BlockRun(request, len(table), table))
        self.runs_of[request.request_id] = runs
        return table

    def release(self, request: Request) -> None:
        """Give a request's table back, last block first.

        With `reuse_unhashed_first` what cannot be hit goes before the head of the free queue, else all to the
        tail.
        """
        end = len(request.block_tables[0])
        unhashed: list[int] = []
        for run in reversed(self.runs_of.pop(request.request_id)):
            if run.holder is not None:
                run.num_keyed = run.keyed()
                if not run.num_keyed and run.first_key is not None:
                    self._uncache(run)
                start = run.start
                if start or end < len(run.blocks):
                    run.blocks = run.blocks[start:end]
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
        if not limit:
            return self.no_hits
        chain = keys.firsts[0] >> ROOM_BITS
        if chain not in self._chains and chain not in self._singles:
            return self.no_hits
        hits = RunHits()
        for stretch, first in enumerate(keys.firsts):
            end = min(keys.end(stretch), limit)
            if not self._add_hits(hits, first, end - keys.starts[stretch]) or end == limit:
                break
        return hits

    def _add_hits(self, hits: RunHits, first_key: int, count: int) -> bool:
        """Add what is hit of `count` consecutive keys of a chain; whether that is all of them."""
        chain, key, end = first_key >> ROOM_BITS, first_key, first_key + count
        runs, singles = self._chains.get(chain), self._singles.get(chain)
        if runs is not None:
            for run in runs:
                run_begins = run.first_key
                assert run_begins is not None
                if singles is not None and key < run_begins:
                    key = _add_single_hits(hits, singles, key, min(run_begins, end))
                if key != run_begins or key == end:
                    break
                num_hits = run.num_keyed if run.holder is None else self._num_keyed(run)
                num_hits = min(num_hits, end - key)
                if num_hits:
                    hits.add(run, num_hits)
                    key += num_hits
        if singles is not None:
            key = _add_single_hits(hits, singles, key, end)
        return key == end

    def claim(self, run: BlockRun, key: int) -> bool:
        """Let an open run without keys hold `key` and the keys after it, without a further call for each.

        Whoever held the chain's end so far gives it up. False if the chain has `key` or a later one already:
        then the block must be entered by `enter_singly`.
        """
        chain = key >> ROOM_BITS
        runs = self._chains.get(chain)
        if runs is not None and runs[-1].holder is not None and runs[-1].end == OPEN:
            self._close_open_run(runs[-1])
        if runs is None and chain not in self._singles:
            self._chains[chain] = [run]
        elif self._end_of_chain(chain) > key:
            return False
        else:
            self._chains.setdefault(chain, []).append(run)
        run.first_key = key
        return True

    def _end_of_chain(self, chain: int) -> int:
        """The key behind the last one that the chain has, none of its runs being open; the least number if
        there is none.
        """
        end = chain << ROOM_BITS
        runs, singles = self._chains.get(chain), self._singles.get(chain)
        if runs is not None:
            last = runs[-1]
            assert last.first_key is not None
            end = last.first_key + last.keyed()
        return end if singles is None else max(end, max(singles) + 1)

    def close(self, run: BlockRun, end: int) -> BlockRun:
        """End an open run before block `end` of its table, where another text begins; returns that text's."""
        if run.start == end:
            self._uncache(run)
            return run
        run.end = end
        assert run.holder is not None
        last = BlockRun(run.holder, end, run.blocks)
        self.runs_of[run.holder.request_id].append(last)
        return last

    def enter_singly(self, request: Request, first: int, end: int) -> int:
        """Enter blocks of a table from `first` on, at most up to `end`, as single blocks beside their chain.

        They leave the request's open run, which begins with `first` and has no keys. Returns where the next
        block to enter is: from there on the chain may be free.
        """
        keys, runs = request.block_keys, self.runs_of[request.request_id]
        key = keys[first]
        chain = key >> ROOM_BITS
        end = min(keys.end_behind(first), end, first + self._end_of_chain(chain) - key)
        singles = self._singles.setdefault(chain, {})
        open_run = runs.pop()
        for i in range(first, end):
            single = BlockRun(None, 0, [open_run.blocks[i]])
            single.is_single, single.sharers = True, [request]
            single.first_key, single.num_keyed = key, 1
            singles.setdefault(key, {})[single] = None
            runs.append(single)
            key += 1
        open_run.start = end
        runs.append(open_run)
        return end

    def _close_open_run(self, run: BlockRun) -> None:
        """Somebody else computes the text of an open run: what it has entered so far stays in the chain, and
        it gives up the keys behind that.
        """
        holder = run.holder
        assert holder is not None
        keyed = self._num_keyed(run)
        if keyed:
            self._cut(run, keyed)
        self._uncache(run)
        if self.watcher is not None:
            self.watcher.note_equal_text(holder)

    def _cut(self, run: BlockRun, count: int) -> BlockRun:
        """Cut a run behind its first `count` blocks, all of which have keys.

        Returns the first part, which is not open. An open run keeps its place in the chain even without keys:
        its holder goes on.
        """
        if run.holder is not None:
            return self._cut_own(run, count)
        if count < len(run.blocks):
            self._cut_off_rest(run, count)
        return run

    def _cut_off_rest(self, run: BlockRun, count: int) -> BlockRun:
        """Cut a shared or free run behind its first `count` blocks; returns the rest, with the same holders
        or in the same place of the queue.
        """
        rest = BlockRun(None, 0, run.blocks[count:])
        rest.num_keyed = run.num_keyed - count
        if rest.num_keyed:
            assert run.first_key is not None
            rest.first_key = run.first_key + count
            _insert_behind(run, rest, self._chains[rest.first_key >> ROOM_BITS])
        if run.sharers is None:
            self.free_queue.size -= len(rest.blocks)
            self.free_queue.insert_before(rest, run)
        else:
            rest.sharers = run.sharers.copy()
            for request in run.sharers:
                _insert_behind(run, rest, self.runs_of[request.request_id])
        del run.blocks[count:]
        run.num_keyed = count
        return rest

    def _cut_own(self, run: BlockRun, count: int) -> BlockRun:
        """Cut an own run behind its first `count` blocks; returns these as a run of one sharer."""
        holder, first_key, start = run.holder, run.first_key, run.start
        assert holder is not None
        assert first_key is not None
        blocks = run.blocks[start : start + count]
        if start + count == run.end:
            run.holder, run.blocks, run.num_keyed, run.sharers = None, blocks, count, [holder]
            return run
        front = BlockRun(None, 0, blocks)
        front.num_keyed, front.first_key, front.sharers = count, first_key, [holder]
        for runs in (self.runs_of[holder.request_id], self._chains[first_key >> ROOM_BITS]):
            runs.insert(runs.index(run), front)
        run.start += count
        run.first_key = first_key + count
        return front

    def _uncache(self, run: BlockRun) -> None:
        """Take a run out of the prefix cache: it has no keys any more, and none claimed."""
        key = run.first_key
        assert key is not None
        chain = key >> ROOM_BITS
        if run.is_single:
            singles = self._singles[chain]
            del singles[key][run]
            if not singles[key]:
                del singles[key]
                if not singles:
                    del self._singles[chain]
        else:
            runs = self._chains[chain]
            if len(runs) > 1:
                runs.remove(run)
            else:
                del self._chains[chain]
        run.first_key = None
        run.num_keyed = 0

    def _num_keyed(self, run: BlockRun) -> int:
        if run.holder is not None and self.watcher is not None:
            self.watcher.catch_up(run.holder)
        return run.keyed()

    # --- for those who look from outside; these cost time in proportion to blocks -------------------------

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache; others with the same key stay."""
        for run in self._cached_runs():
            blocks = self._keyed_blocks(run)
            if block in blocks:
                place = blocks.index(block)
                if self.events is not None:
                    assert run.first_key is not None
                    self.events.note_removed(run.first_key + place, 0, block)
                front = self._cut(run, place + 1)
                self._uncache(self._cut_off_rest(front, place) if place else front)
                return

    def forget_all(self) -> None:
        """Empty the prefix cache (no block may be held). The order of the free queue does not change."""
        if self.events is not None:
            self.events.note_cleared()
        for run in self.free_queue.runs():
            run.num_keyed, run.first_key = 0, None
        self._chains.clear()
        self._singles.clear()
        self.num_cached_free = 0

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be hit."""
        for run in self._cached_runs():
            yield from self._keyed_blocks(run)

    def cached_keys(self) -> Iterator[int]:
        """One key of every chain."""
        for chain in (*self._chains, *self._singles):
            yield chain << ROOM_BITS

    def unshared_blocks(self, request: Request) -> list[int]:
        """Blocks that this request alone holds."""
        blocks: list[int] = []
        for run in self.runs_of.get(request.request_id, ()):
            if run.holder is not None:
                blocks += run.blocks[run.start : run.end]
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
        for runs in self.runs_of.values():
            for run in runs:
                own = run.holder is not None
                for block in run.blocks[run.start : run.end] if own else run.blocks:
                    counts[block] = len(run.sharers or (run,))
        return counts

    def _cached_runs(self) -> Iterator[BlockRun]:
        """Every run with keys; of those with the same key the earliest entered first."""
        for runs in self._chains.values():
            yield from runs
        for singles in self._singles.values():
            for copies in singles.values():
                yield from copies

    def _keyed_blocks(self, run: BlockRun) -> list[int]:
        start = 0 if run.holder is None else run.start
        return run.blocks[start : start + self._num_keyed(run)]


def _add_single_hits(hits: RunHits, singles: dict[int, dict[BlockRun, None]], key: int, end: int) -> int:
    """Add the single blocks of the keys from `key` to `end`; returns the first key that is not found."""
    while key < end:
        copies = singles.get(key)
        if copies is None:
            break
        hits.add(next(iter(copies)), 1)
        key += 1
    return key


def _insert_behind(run: BlockRun, rest: BlockRun, runs: list[BlockRun]) -> None:
    runs.insert(runs.index(run) + 1, rest)
