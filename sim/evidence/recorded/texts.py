"""Texts for the requests of a recording, which has none: equal classes give equal tokens, all else differs.

The class of a block stands for everything up to the block's end (and the tokens behind it that its hash
covers). So the tokens that a class adds to those of the block before may be any, as long as they are its own:
token ids are the class times the block size and the place in the block, and blocks with consecutive classes
are one range. Tokens of blocks that were never full have ids of their request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scheduler.tokens import TokenRange
from sim.recordings import Added, ClassesKnown, ClassRun, Recording

_FIRST_TOKEN = 1000
_TOKENS_OF_ITS_OWN = 1 << 24


class Texts:
    """The tokens of each request at each position. `now` is the number of the call under way."""

    def __init__(self, recording: Recording, block_size: int, lookahead: int) -> None:
        self.now = -1
        self._size = block_size
        self._ahead = lookahead
        self._blocks: list[list[list[tuple[int, int]]]] = [[] for _ in recording.requests]
        """By request and block: `(number of the call that tells it, class)`."""
        self._shares: dict[int, int] = {}
        """By class another one, with which it has all tokens in common but the last."""
        self._equals: dict[int, int] = {}
        """By class another one, with all the same tokens: what differs are those before them."""
        seen: set[int] = set()
        for number, call in enumerate(recording.calls):
            if isinstance(call, Added):
                prompt = recording.requests[call.request_id].prompt_classes
                self._learn(number, ClassesKnown(call.request_id, 0, prompt), seen)
            elif isinstance(call, ClassesKnown):
                self._learn(number, call, seen)
        self._first_of_its_own = _FIRST_TOKEN + (max(seen, default=0) + 2) * block_size

    def _learn(self, number: int, call: ClassesKnown, seen: set[int]) -> None:
        blocks = self._blocks[call.request_id]
        for block, known in enumerate(_each(call.classes), call.first_block):
            if block == len(blocks):
                blocks.append([])
            elif blocks[block][-1][1] != known and known not in seen:
                # the text was cut by the last token of the first of these blocks and went on otherwise
                others = self._shares if block == call.first_block else self._equals
                others[known] = blocks[block][-1][1]
            blocks[block].append((number, known))
            seen.add(known)

    def token(self, request_id: int, position: int, *, again: bool = False) -> int:
        """The token that is written at this position now; `again`: in place of one that was dropped."""
        blocks = self._blocks[request_id]
        block = self._block(position)
        if block >= len(blocks):
            return self._first_of_its_own + request_id * _TOKENS_OF_ITS_OWN + position
        told = blocks[block]
        known = told[-1][1]
        if len(told) > 1 and not again:
            known = next((each for number, each in told if number >= self.now), known)
        place = position - block * self._size
        is_last = place == self._size + self._ahead - 1
        while known in self._equals or (known in self._shares and not is_last):
            known = self._equals[known] if known in self._equals else self._shares[known]
        return _FIRST_TOKEN + known * self._size + place

    def _block(self, position: int) -> int:
        return max(position - self._ahead, 0) // self._size

    def continuation(self, request_id: int, begin: int, end: int) -> list[TokenRange]:
        """The same for a session's next input, whose first token takes the place of one that was dropped."""
        first = self.token(request_id, begin, again=True)
        return [(first, 1), *self.ranges(request_id, begin + 1, end)]

    def ranges(self, request_id: int, begin: int, end: int) -> list[TokenRange]:
        """The tokens of these positions as ranges."""
        ranges: list[TokenRange] = []
        while begin < end:
            token = self.token(request_id, begin)
            block = self._block(begin)
            stop = end
            if block < len(self._blocks[request_id]):
                last = (block + 1) * self._size + self._ahead - 1
                stop = min(end, last if (self._shares or self._equals) and begin < last else last + 1)
            if ranges and ranges[-1][0] + ranges[-1][1] == token:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + stop - begin)
            else:
                ranges.append((token, stop - begin))
            begin = stop
        return ranges


class LaterPrompt(tuple[TokenRange, ...]):
    """A session's next input. Its tokens depend on where it is put, so they are made when asked for."""

    _make: Callable[[], list[TokenRange]]

    def __new__(cls, make: Callable[[], list[TokenRange]]) -> LaterPrompt:
        """`make` gives the tokens."""
        made = super().__new__(cls)
        made._make = make
        return made

    def __iter__(self) -> Iterator[TokenRange]:
        return iter(self._make())


def _each(runs: tuple[ClassRun, ...]) -> Iterator[int]:
    for first, count in runs:
        yield from range(first, first + count)
