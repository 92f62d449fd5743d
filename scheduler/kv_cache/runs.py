"""Blocks in runs: the pool of a plain KV cache, at a price per run where nobody can tell the difference.

Most blocks are never shared: a request takes them, fills them with one text, and gives them back as it took
them. Such a *run* needs no reference counts, and its keys are consecutive, so one number describes them all;
in the free queue it is a single node. A block becomes a *single*, with a count and a key of its own, when
somebody else meets it: by a prefix hit, or by computing the same text. Ids, the order of the free queue, hits
and evictions are those of `pool.BlockPool`, block for block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from scheduler.kv_cache.hashes import ROOM_BITS
from scheduler.kv_cache.pool import NULL_BLOCK
from scheduler.kv_cache.run_queue import OPEN, BlockRun, RunQueue
from scheduler.request import Request


class RunWatcher(Protocol):
    """Somebody who brings the `num_cached_blocks` of holders up to date only when it matters."""

    def catch_up(self, holder: Request) -> None:
        """Others look at this request's blocks: its `num_cached_blocks` must be right now."""

    def note_met(self, holder: Request) -> None:
        """Others compute the same text: the request's next block can no longer be entered unseen."""


class RunPool:
    """The blocks of one engine whose only KV group is full attention. Same laws as `BlockPool`."""

    def __init__(self, num_blocks: int, *, reuse_unhashed_first: bool = False) -> None:
        self.num_blocks = num_blocks
        self.reuse_unhashed_first = reuse_unhashed_first
        self.free_queue = RunQueue(num_blocks)
        self.num_cached_free = 0
        self.num_evictions = 0
        self.num_freed = 0
        self._runs: dict[int, BlockRun] = {}
        """The run in each chain of keys, by the chain's number: a key without its last `ROOM_BITS` bits."""
        self._singles: dict[int, dict[int, int | dict[int, None]]] = {}
        """Single blocks by chain and key; several with one key in the order in which they were entered."""
        self._counts = [0] * num_blocks
        self._keys: list[int | None] = [None] * num_blocks
        self.watcher: RunWatcher | None = None
        first = BlockRun(None, 0)
        first.blocks = list(range(num_blocks - 1, 0, -1))
        self._append_run(first)

    # --- out of the free queue and back -----------------------------------------------------------------

    def take(self, count: int, unkeyed: list[int] | None = None) -> list[int]:
        """Hand out `count` blocks from the head of the free queue; those that carry a key are evicted.

        The places in the result of those that carry none are appended to `unkeyed`.
        """
        queue = self.free_queue
        queue.size -= count
        taken: list[int] = []
        while count > 0:
            head = queue.following[0]
            run = queue.runs.get(head)
            if run is None:
                queue.remove(head)
                if self._keys[head] is not None:
                    self.num_cached_free -= 1
                    self.num_evictions += 1
                    self._forget_single(head)
                elif unkeyed is not None:
                    unkeyed.append(len(taken))
                taken.append(head)
                count -= 1
                continue
            blocks = run.blocks
            left = len(blocks) - count
            if unkeyed is not None and run.num_keyed < len(blocks):
                first = len(taken)
                unkeyed += range(first, first + min(len(blocks) - run.num_keyed, count))
            if left > 0:
                taken += blocks[: left - 1 : -1]
                del blocks[left:]
                count = 0
            else:
                taken += blocks[::-1]
                queue.remove(head)
                del queue.runs[head]
                count, left = -left, 0
            if run.num_keyed > left:
                self.num_cached_free -= run.num_keyed - left
                self.num_evictions += run.num_keyed - left
                run.num_keyed = left
                if not left:
                    self._strip(run)
        return taken

    def num_holders(self, block: int) -> int:
        """Holders of a block that is held."""
        return self._counts[block] or 1

    def touch(self, singles: Iterable[int]) -> None:
        """One more holder for each block that `find_run` or `share` has made a single."""
        counts = self._counts
        for block in singles:
            if counts[block] == 0:
                self.free_queue.remove(block)
                self.free_queue.size -= 1
                self.num_cached_free -= 1
            counts[block] += 1

    def num_free_of(self, singles: Iterable[int]) -> int:
        """How many of these have no holder."""
        counts = self._counts
        return [counts[block] for block in singles].count(0)

    def release(self, table: list[int], runs: list[BlockRun]) -> None:
        """Give a request's table back, last block first: its runs, and what lies between them as singles.

        With `reuse_unhashed_first` what cannot be hit goes before the head of the free queue, else all to the
        tail.
        """
        end = len(table)
        unhashed: list[int] = []
        to_head = unhashed if self.reuse_unhashed_first else None
        for run in reversed(runs):
            if run.end < end:
                self._release_singles(table[run.end : end], to_head)
                end = run.end
            run.num_keyed = run.keyed()
            if not run.num_keyed and run.first_key is not None:
                self._strip(run)
            if run.start < end:
                run.blocks = table[run.start : end] if run.start or end < len(table) else table
                run.holder = None
                self.num_freed += end - run.start
                self.num_cached_free += run.num_keyed
                if to_head is not None:
                    to_head += run.blocks[: run.num_keyed - 1 if run.num_keyed else None : -1]
                    run.blocks = run.blocks[: run.num_keyed]
                if run.blocks:
                    self._append_run(run)
                end = run.start
        if end:
            self._release_singles(table[:end], to_head)
        if unhashed:
            self._prepend_run(unhashed)

    def _append_run(self, run: BlockRun) -> None:
        node = run.blocks[0]
        self.free_queue.append(node)
        self.free_queue.runs[node] = run
        self.free_queue.size += len(run.blocks)

    def _prepend_run(self, blocks: list[int]) -> None:
        """Put blocks that cannot be hit before the head, the first of them frontmost."""
        run = BlockRun(None, 0)
        run.blocks = blocks[::-1]
        node, queue = run.blocks[0], self.free_queue
        queue.insert_before(node, queue.following[0])
        queue.runs[node] = run
        queue.size += len(blocks)

    def _release_singles(self, blocks: list[int], to_head: list[int] | None) -> None:
        queue, counts, keys = self.free_queue, self._counts, self._keys
        for block in reversed(blocks):
            count = counts[block] - 1
            counts[block] = count
            if count == 0:
                self.num_freed += 1
                if keys[block] is not None:
                    self.num_cached_free += 1
                elif to_head is not None:
                    to_head.append(block)
                    continue
                queue.append(block)
                queue.size += 1

    # --- prefix cache -----------------------------------------------------------------------------------

    def find_chain(self, keys: list[int], first: int, limit: int) -> list[int]:
        """The blocks hit by `keys[first:limit]`, as far as found and in the chain of the first.

        What is hit becomes single.
        """
        chain = keys[first] >> ROOM_BITS
        singles, run = self._singles.get(chain), self._runs.get(chain)
        found: list[int] = []
        if singles is not None:
            for key in keys[first:limit]:
                block = singles.get(key)
                if block is None:
                    break
                found.append(block if isinstance(block, int) else next(iter(block)))
            first += len(found)
        if run is not None and first < limit and keys[first] == run.first_key:
            count = min(self._num_keyed(run), limit - first)
            while count and keys[first + count - 1] != run.first_key + count - 1:
                count -= 1
            if count:
                found += self.share(run, count)
        return found

    def claim(self, run: BlockRun, key: int) -> bool:
        """Whether `run` may hold `key` and the keys after it alone; if not, blocks must be entered singly."""
        chain = key >> ROOM_BITS
        other = self._runs.get(chain)
        if other is not None:
            self.share(other, self._num_keyed(other))
            if other.first_key is not None:
                self._strip(other)
            if other.holder is not None and self.watcher is not None:
                self.watcher.note_met(other.holder)
            return False
        singles = self._singles.get(chain)
        if singles is not None and max(singles) >= key:
            return False
        run.first_key = key
        self._runs[chain] = run
        return True

    def close(self, run: BlockRun, end: int) -> BlockRun:
        """The run ends before block `end` of its table, where another text begins; returns that text's."""
        run.end = end
        if run.start == end:
            self._strip(run)
        return BlockRun(run.holder, end)

    def enter(self, block: int, key: int) -> None:
        """Enter a held block that no run claims: from now on it is a single."""
        self._counts[block] = 1
        self._add_single(block, key)

    def share(self, run: BlockRun, count: int) -> list[int]:
        """Make the first `count` keyed blocks of a run singles, and return them.

        What is left stays a run. An open one keeps its place in the chain even without keys: its holder goes
        on.
        """
        first_key, keyed = run.first_key, run.keyed()
        assert first_key is not None
        if run.holder is not None:
            shared = run.holder.block_tables[0][run.start : run.start + count]
            run.start += count
            for block in shared:
                self._counts[block] = 1
        else:
            shared, run.blocks = run.blocks[:count], run.blocks[count:]
            queue, node = self.free_queue, shared[0]
            del queue.runs[node]
            if run.blocks:
                queue.runs[run.blocks[0]] = run
                queue.insert_before(run.blocks[0], node)
            for block in reversed(shared[1:]):
                queue.insert_before(block, node)
        for i, block in enumerate(shared):
            self._add_single(block, first_key + i)
        run.first_key = first_key + count
        run.num_keyed = keyed - count
        if count == keyed and (run.holder is None or run.end != OPEN):
            self._strip(run)
        return shared

    def _num_keyed(self, run: BlockRun) -> int:
        if run.holder is not None and self.watcher is not None:
            self.watcher.catch_up(run.holder)
        return run.keyed()

    def _strip(self, run: BlockRun) -> None:
        """The run has no keys any more, and none reserved."""
        assert run.first_key is not None
        del self._runs[run.first_key >> ROOM_BITS]
        run.first_key = None
        run.num_keyed = 0

    def _add_single(self, block: int, key: int) -> None:
        self._keys[block] = key
        cached = self._singles.setdefault(key >> ROOM_BITS, {})
        found = cached.get(key)
        if found is None:
            cached[key] = block
        elif isinstance(found, dict):
            found[block] = None
        elif found != block:
            cached[key] = {found: None, block: None}

    def _forget_single(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None
        self._keys[block] = None
        chain = key >> ROOM_BITS
        cached = self._singles[chain]
        found = cached[key]
        if isinstance(found, dict):
            del found[block]
            if len(found) == 1:
                cached[key] = next(iter(found))
        else:
            del cached[key]
            if not cached:
                del self._singles[chain]

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache; others with the same key stay."""
        for run in list(self._runs.values()):
            if block in self._keyed_blocks(run):
                self.share(run, self._num_keyed(run))
        if self._keys[block] is not None:
            self._forget_single(block)

    def forget_all(self) -> None:
        """Empty the prefix cache (no block may be held). The order of the free queue does not change."""
        for run in self._runs.values():
            run.num_keyed, run.first_key = 0, None
        self._runs.clear()
        self._singles.clear()
        self._keys = [None] * self.num_blocks
        self.num_cached_free = 0

    # --- for those who look from outside; these cost time in proportion to blocks -------------------------

    def find(self, key: int, group: int = 0) -> int:
        """The earliest entered block with this key, `NULL_BLOCK` if there is none."""
        found = self._singles.get(key >> ROOM_BITS, {}).get(key)
        if found is not None:
            return found if isinstance(found, int) else next(iter(found))
        run = self._runs.get(key >> ROOM_BITS)
        if run is not None and run.first_key is not None and 0 <= key - run.first_key < self._num_keyed(run):
            return self._keyed_blocks(run)[key - run.first_key]
        return NULL_BLOCK

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be hit."""
        for cached in self._singles.values():
            for found in cached.values():
                if isinstance(found, int):
                    yield found
                else:
                    yield from found
        for run in self._runs.values():
            yield from self._keyed_blocks(run)

    def cached_keys(self) -> Iterator[int]:
        """One key of every chain."""
        for cached in self._singles.values():
            yield next(iter(cached))
        for run in self._runs.values():
            if run.first_key is not None:
                yield run.first_key

    @property
    def key_of_block(self) -> list[int | None]:
        """The key of each block, None where it cannot be hit."""
        keys = self._keys.copy()
        for run in self._runs.values():
            assert run.first_key is not None
            for i, block in enumerate(self._keyed_blocks(run)):
                keys[block] = run.first_key + i
        return keys

    @property
    def ref_counts(self) -> list[int]:
        """The number of holders of each block."""
        counts = [count or 1 for count in self._counts]
        counts[NULL_BLOCK] = 0
        for block in self.free_queue:
            counts[block] = 0
        return counts

    def _keyed_blocks(self, run: BlockRun) -> list[int]:
        if run.holder is not None:
            return run.holder.block_tables[0][run.start : run.start + self._num_keyed(run)]
        return run.blocks[: run.num_keyed]
