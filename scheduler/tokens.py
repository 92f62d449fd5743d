"""A request's text in few numbers: its tokens as ranges of consecutive ids, and the keys of its blocks.

Only identities matter to a scheduler: which prompts share a prefix, which blocks hold the same text. Prompts
and outputs therefore are ranges of consecutive integers, and a text of 100,000 tokens costs as much memory as
it has breaks. Within a range `token - position` is constant; that difference, the range's *shift*, is all
that is stored, so appending the token that continues a range changes nothing but the length.

Most keys of blocks are the one before plus one (see `kv_cache.hashes`), so they are kept alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

TokenRange = tuple[int, int]
"""`(first token id, number of tokens)`: consecutive ids."""


class TokenRanges:
    """The tokens at positions 0 … length - 1, as longest ranges (neighbours have different shifts)."""

    __slots__ = ("shifts", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.shifts: list[int] = []

    def append_ranges(self, length: int, ranges: Iterable[TokenRange]) -> int:
        """Append ranges behind the first `length` tokens and return the new length."""
        for token, count in ranges:
            if count > 0:
                self.append(length, token)
                length += count
        return length

    def append(self, position: int, token: int) -> None:
        """Put `token` at `position`, the end of the text; following ids may follow without a further call."""
        shift = token - position
        if not self.shifts or self.shifts[-1] != shift:
            self.starts.append(position)
            self.shifts.append(shift)

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""
        keep = bisect_left(self.starts, length)
        del self.starts[keep:]
        del self.shifts[keep:]

    def range_at(self, position: int) -> int:
        """Index of the range that holds `position`."""
        return bisect_right(self.starts, position) - 1

    def pieces(self, begin: int, end: int) -> tuple[TokenRange, ...]:
        """The tokens of positions `begin` … `end - 1` as the fewest ranges: equal texts give equal pieces."""
        starts, shifts = self.starts, self.shifts
        i = self.range_at(begin)
        found = []
        while begin < end:
            stop = starts[i + 1] if i + 1 < len(starts) else end
            stop = min(stop, end)
            found.append((begin + shifts[i], stop - begin))
            begin = stop
            i += 1
        return tuple(found)


class BlockKeys:
    """The keys of the leading `length` blocks: from block `starts[i]` on, `firsts[i]` and those after it.

    `last_shift` is the shift of the token range in which the last of these blocks ends: as long as the text
    goes on with that shift, each key is the one before plus one.
    """

    __slots__ = ("firsts", "last_shift", "length", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.firsts: list[int] = []
        self.length = 0
        self.last_shift = 0

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
