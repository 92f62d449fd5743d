"""Block hashes: an exact integer key for every full block of a request, chained through all blocks before it.

Two blocks have the same key if and only if their texts, everything before them, and the extras (LoRA adapter
in every block, cache salt in the first) are the same. No digest is needed because a text is a few ranges of
consecutive ids (see `scheduler.tokens`):

* a first block that is one range and has no extras takes its key from its first token;
* a block that continues the range in which the block before it ended has that block's key plus one;
* every other block gets the next unused number for its (parent key, pieces, extras).

So a prompt that shares nothing is hashed by arithmetic, thousands of blocks at once, and only the places
where texts can branch cost memory. Numbered keys are negative, arithmetic ones are not, and both leave room
for 2**24 increments, so keys of different texts never meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.request import Request
from scheduler.tokens import TokenRange

ROOM_BITS = 24
SMALLEST_SWEEP = 100_000

_Origin = tuple[int | None, tuple[TokenRange, ...], str | None, str | None]


class BlockHasher:
    """Makes the keys of one engine's requests, `block_size` tokens each.

    With `lookahead` a block's key also covers so many tokens behind the block, and exists only once they do.
    """

    __slots__ = ("_last_number", "_numbers", "block_size", "lookahead", "sweep_at")

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self._numbers: dict[_Origin, int] = {}
        self._last_number = 0
        self.sweep_at = SMALLEST_SWEEP
        """`sweep` is worth its time once there are so many numbers."""

    @property
    def num_numbered(self) -> int:
        """Places where texts branch that have been given a number."""
        return len(self._numbers)

    def extend(self, request: Request) -> None:
        """Append the keys of all full blocks that have none yet. Keys once made are never recomputed here."""
        size, ahead = self.block_size, self.lookahead
        keys = request.block_keys
        index = keys.length
        full = (request.num_tokens - ahead) // size
        if index >= full:
            return
        tokens = request.tokens
        starts, shifts = tokens.starts, tokens.shifts
        if index + 1 == full and starts[-1] <= index * size and index and keys.last_shift == shifts[-1]:
            keys.length = full  # the range in which the last block ended fills one more
            return
        while index < full:
            begin = index * size
            place = tokens.range_at(begin)
            range_end = starts[place + 1] if place + 1 < len(starts) else request.num_tokens
            if begin + size + ahead <= range_end:
                count = (range_end - ahead) // size - index
                if index == 0 and request.lora_name is None and request.cache_salt is None:
                    keys.append(shifts[place] << ROOM_BITS, count)
                elif index and keys.last_shift == shifts[place]:
                    keys.length += count
                else:
                    keys.append(self._number(request, begin), count)
                index += count
            else:
                keys.append(self._number(request, begin), 1)
                place = tokens.range_at(begin + size + ahead - 1)
                index += 1
            keys.last_shift = shifts[place]

    def goes_on(self, request: Request) -> bool:
        """Whether each key still to be made is the one before it plus one."""
        tokens, keys = request.tokens, request.block_keys
        return (
            keys.length > 0
            and tokens.starts[-1] <= keys.length * self.block_size
            and keys.last_shift == tokens.shifts[-1]
        )

    def truncate(self, request: Request, num_tokens: int) -> None:
        """Forget the keys of blocks that are not full within the first `num_tokens` tokens."""
        keys = request.block_keys
        keys.truncate(num_tokens // self.block_size)
        if keys.length:
            tokens = request.tokens
            last = keys.length * self.block_size + self.lookahead - 1
            keys.last_shift = tokens.shifts[tokens.range_at(last)]

    def rebuild(self, request: Request) -> None:
        """Make all keys anew from the present tokens."""
        request.block_keys.clear()
        self.extend(request)

    def _number(self, request: Request, begin: int) -> int:
        pieces = request.tokens.pieces(begin, begin + self.block_size + self.lookahead)
        origin: _Origin
        if begin:
            origin = (request.block_keys[-1], pieces, None, None)
        else:
            origin = (None, pieces, request.lora_name, request.cache_salt)
        number = self._numbers.get(origin)
        if number is None:
            self._last_number += 1
            number = self._numbers[origin] = self._last_number
        return -(number << ROOM_BITS)

    def sweep(self, keys: Iterable[int]) -> None:
        """Forget the numbers that no key in use refers to, itself or through its parents.

        `keys`: those of all known requests, and of all cached blocks. A text that comes again later gets a
        new number; nobody can tell, for nothing cached has the old one. Numbers are never given twice.
        """
        origins = {number: origin for origin, number in self._numbers.items()}
        todo = {-(key >> ROOM_BITS) for key in keys if key < 0}
        live: set[int] = set()
        while todo:
            number = todo.pop()
            live.add(number)
            parent = origins[number][0]
            if parent is not None and parent < 0 and -(parent >> ROOM_BITS) not in live:
                todo.add(-(parent >> ROOM_BITS))
        self._numbers = {origin: number for origin, number in self._numbers.items() if number in live}
        self.sweep_at = max(2 * len(live), SMALLEST_SWEEP)
