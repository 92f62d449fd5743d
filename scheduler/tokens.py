"""A request's tokens, kept as runs of consecutive ids.

Only identities matter to a scheduler: which prompts share a prefix, which blocks hold the same text. Prompts
and outputs therefore are runs of consecutive integers, and a text of 100,000 tokens costs as much memory as
it has breaks. Within a run `token - position` is constant; that difference, the run's *shift*, is all that is
stored, so appending the token that continues a run changes nothing but the length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

TokenRange = tuple[int, int]
"""`(first token id, number of tokens)`: consecutive ids."""


class TokenRuns:
    """The tokens at positions 0 … length - 1, as maximal runs (neighbouring runs have different shifts)."""

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

    def run_at(self, position: int) -> int:
        """Index of the run that holds `position`."""
        return bisect_right(self.starts, position) - 1

    def pieces(self, begin: int, end: int) -> tuple[TokenRange, ...]:
        """The tokens of positions `begin` … `end - 1` as the fewest ranges: equal texts give equal pieces."""
        starts, shifts = self.starts, self.shifts
        run = self.run_at(begin)
        found = []
        while begin < end:
            stop = starts[run + 1] if run + 1 < len(starts) else end
            stop = min(stop, end)
            found.append((begin + shifts[run], stop - begin))
            begin = stop
            run += 1
        return tuple(found)
