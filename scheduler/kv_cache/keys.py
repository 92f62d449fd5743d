"""The keys of a text's blocks, in few numbers: most keys are the one before plus one (see `hashes`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


class BlockKeys:
    """The keys of the leading `length` blocks: from block `starts[i]` on, `firsts[i]` and those after it."""

    __slots__ = ("firsts", "length", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.firsts: list[int] = []
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, block: int) -> int:
        if block < 0:
            block += self.length
        if not 0 <= block < self.length:
            raise IndexError(block)
        i = len(self.starts) - 1
        while self.starts[i] > block:
            i -= 1
        return self.firsts[i] + block - self.starts[i]

    def __iter__(self) -> Iterator[int]:
        return iter(self.all())

    def all(self) -> list[int]:
        """One key a block."""
        keys: list[int] = []
        for i, start in enumerate(self.starts):
            keys.extend(range(self.firsts[i], self.firsts[i] + self.end(i) - start))
        return keys

    def end(self, i: int) -> int:
        """The block that no longer belongs to the i-th stretch of consecutive keys."""
        return self.starts[i + 1] if i + 1 < len(self.starts) else self.length

    def end_behind(self, block: int) -> int:
        """The end of the stretch that this block is in."""
        end = self.length
        i = len(self.starts) - 1
        while self.starts[i] > block:
            end = self.starts[i]
            i -= 1
        return end

    def append(self, first: int, count: int) -> None:
        """So many blocks more, with the keys from `first` on: a new stretch."""
        self.starts.append(self.length)
        self.firsts.append(first)
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget all keys but the first `length`."""
        if length < self.length:
            keep = bisect_left(self.starts, length)
            del self.starts[keep:]
            del self.firsts[keep:]
            self.length = length

    def clear(self) -> None:
        """Forget all keys."""
        self.starts.clear()
        self.firsts.clear()
        self.length = 0
