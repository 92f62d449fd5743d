"""What prompts consist of: ranges of token ids, worked out when asked for; equal prefixes are equal ids.

Token ids are cut into slots of 2^24. Slot 0 holds the special tokens. Then comes one slot for each shared
prefix, and one for each request: the part of its prompt that nobody shares, and what it generates. Ids of a
trace's hashed blocks lie above all slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim.values import Ints

Ranges = tuple[tuple[int, int], ...]
"""A prompt: `(first token id, tokens)` of each run of consecutive ids."""

SLOT_BITS = 24
PART_BITS = 96
"""Room for the ids of one workload among several: all its slots, and the blocks of any trace."""


class Prompts(Protocol):
    """Where the tokens of each request come from."""

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The prompt of request `index`, `prompt_tokens` long."""

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """The id of the first token that request `index` generates; the others follow it."""


@dataclass(frozen=True, slots=True)
class DistinctPrompts:
    """No two prompts share a token, unless `distinct` makes request i repeat request i mod `distinct`."""

    distinct: int | None = None

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """One range in the request's own slot, or in that of the request it repeats."""
        return (((1 + (index % self.distinct if self.distinct else index)) << SLOT_BITS, prompt_tokens),)

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """Right after the prompt; a repeated prompt gets the same answer."""
        return ((1 + (index % self.distinct if self.distinct else index)) << SLOT_BITS) + prompt_tokens


@dataclass(frozen=True, slots=True)
class PrefixedPrompts:
    """Prompts of a group begin with the group's prefix, as far as they reach; `group` is -1 for no prefix."""

    group: npt.NDArray[np.int32]
    groups: int
    prefix_tokens: int
    distinct: int | None = None

    def _own_start(self, index: int) -> int:
        return (1 + self.groups + (index % self.distinct if self.distinct else index)) << SLOT_BITS

    def _shared(self, index: int, prompt_tokens: int) -> int:
        return min(self.prefix_tokens, prompt_tokens) if self.group[index] >= 0 else 0

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The prefix, then a range in the request's own slot."""
        shared, own = self._shared(index, prompt_tokens), self._own_start(index)
        if shared == 0:
            return ((own, prompt_tokens),)
        prefix = ((1 + int(self.group[index])) << SLOT_BITS, shared)
        return (prefix, (own, prompt_tokens - shared)) if shared < prompt_tokens else (prefix,)

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """Right after the own part of the prompt."""
        return self._own_start(index) + prompt_tokens - self._shared(index, prompt_tokens)


@dataclass(frozen=True, slots=True)
class SessionPrompts:
    """Turns of conversations: a prompt is its conversation's text from the beginning.

    `text` numbers the conversation of each row. Its text is one run of ids: messages and answers follow one
    another, so a turn's output begins where its prompt ends, and the next prompt goes on behind that output.
    The first `shared_tokens` of a text (by row) are the prefix of its `group`, if the rows have groups.
    """

    text: Ints
    groups: int = 0
    group: npt.NDArray[np.int32] | None = None
    shared_tokens: Ints | None = None

    def _own_start(self, index: int) -> int:
        return (1 + self.groups + int(self.text[index])) << SLOT_BITS

    def _shared(self, index: int) -> int:
        return 0 if self.shared_tokens is None else int(self.shared_tokens[index])

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The prefix, then the conversation so far."""
        shared, own = self._shared(index), self._own_start(index)
        if not shared:
            return ((own, prompt_tokens),)
        assert self.group is not None
        prefix = ((1 + int(self.group[index])) << SLOT_BITS, shared)
        return (prefix, (own, prompt_tokens - shared)) if shared < prompt_tokens else (prefix,)

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """Right after the prompt."""
        return self._own_start(index) + prompt_tokens - self._shared(index)


@dataclass(frozen=True, slots=True)
class MixedPrompts:
    """Prompts of several workloads that share nothing: row i is row `rows[i]` of workload `part[i]`."""

    parts: tuple[Prompts, ...]
    part: Ints
    rows: Ints

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The prompt in its own workload, in a range of ids of that workload alone."""
        part = int(self.part[index])
        ranges = self.parts[part].ranges(int(self.rows[index]), prompt_tokens)
        return tuple([(start + (part << PART_BITS), length) for start, length in ranges])

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """The output's first id, likewise."""
        part = int(self.part[index])
        return self.parts[part].output_start(int(self.rows[index]), prompt_tokens) + (part << PART_BITS)


@dataclass(frozen=True, slots=True)
class HashedPrompts:
    """Prompts of a trace that names its blocks: equal `hash_ids` mean equal tokens.

    Request i has blocks `hash_ids[offsets[i]:offsets[i + 1]]`, each of `block_tokens` tokens, the last as far
    as the prompt reaches. Its output is its own: the trace does not say which later prompt repeats it.
    """

    hash_ids: Ints
    offsets: Ints
    block_tokens: int

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """One range for each run of consecutive blocks."""
        base = (1 + len(self.offsets)) << SLOT_BITS
        ranges: list[tuple[int, int]] = []
        left = prompt_tokens
        for block in self.hash_ids[self.offsets[index] : self.offsets[index + 1]].tolist():
            start, length = base + block * self.block_tokens, min(self.block_tokens, left)
            if length <= 0:
                break
            if ranges and sum(ranges[-1]) == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
            else:
                ranges.append((start, length))
            left -= length
        if left > 0:
            ranges.append(((1 + index) << SLOT_BITS, left))
        return tuple(ranges)

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """In the request's own slot, past any tail of the prompt that has no block."""
        return ((1 + index) << SLOT_BITS) + prompt_tokens
