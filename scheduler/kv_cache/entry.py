"""What enters the prefix cache, and how far: blocks that no lookup could ever hit stay out.

Early releases enter every full block. Later ones stop at lengths that all groups can hit together and that
leave the drafter what it reads ahead, and of a sliding-window group enter only the blocks just before a
place where a lookup can end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.config import KVCacheConfig
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.speculation import Drafter


class EntryLimit:
    """Up to how many tokens the blocks of a group may be entered."""

    def __init__(self, config: KVCacheConfig, rules: Rules, drafter: Drafter) -> None:
        self._unread = max(0, drafter.reads_ahead - 1)
        self._one_group = len(config.groups) == 1
        self._everything = (self._one_group and not self._unread) or not rules.enter_common_lengths
        self._common = config.common_block_size
        self._drops_last_hit = drafter.drops_last_hit

    def tokens(self, block_size: int, num_tokens: int) -> int:
        """The limit for a group with this block size once `num_tokens` tokens are computed or being computed.

        A drafter that has the last hit block dropped needs one block more than the common length.
        """
        if self._everything:
            return num_tokens
        fed = num_tokens - self._unread
        if self._one_group:
            return fed
        common = self._common
        if self._drops_last_hit and num_tokens >= common:
            return min(fed, fed // common * common + block_size)
        return num_tokens // common * common


@dataclass(frozen=True, slots=True)
class InBlockBoundary:
    """The last hash boundary of a prompt inside a larger block: the block counts as hashed from there on."""

    hash_block_size: int
    block_size: int
    drops_last_hit: bool

    def tokens(self, request: Request) -> int:
        """Where it is; 0 if it falls on a block boundary and so is none."""
        prompt = request.num_prompt_tokens - (0 if self.drops_last_hit else 1)
        boundary = prompt // self.hash_block_size * self.hash_block_size
        return boundary if boundary % self.block_size else 0


class ReachableBlocks:
    """The blocks of a sliding-window group that a hit can use: a window's worth before each place to end.

    Places to end are the multiples of `retention_tokens` (None: of the common block size; 0: none), and,
    unless it is None, the ends of this prompt's replays: the prompt itself and the request's junction.
    """

    def __init__(
        self,
        block_size: int,
        window: int,
        common_block_size: int,
        retention_tokens: int | None,
        drops_last_hit: bool,
    ) -> None:
        self._size = block_size
        self._common = common_block_size
        self._drops_last_hit = drops_last_hit
        self._shift = int(drops_last_hit)
        self._needed = -(-(window - 1) // block_size) + self._shift
        self._replays = retention_tokens is not None
        segment = common_block_size if retention_tokens is None else retention_tokens
        self._segment_blocks = segment // block_size

    def among(self, request: Request, first: int, full: int) -> Sequence[int]:
        """Which of the blocks `first` … `full` - 1 to enter."""
        segment, needed, shift = self._segment_blocks, self._needed, self._shift
        if segment and needed >= segment:
            return range(first, full)
        wanted: set[int] = set()
        if segment:
            wanted.update(
                i for i in range(max(first, shift), full) if (i - shift) % segment >= segment - needed
            )
        if self._replays:
            for boundary in self._boundaries(request):
                end = boundary // self._common * self._common // self._size + shift
                wanted.update(range(max(end - needed, first), min(end, full)))
        return sorted(wanted)

    def _boundaries(self, request: Request) -> list[int]:
        prompt, common, junction = request.num_prompt_tokens, self._common, request.junction_tokens
        if not self._drops_last_hit:
            boundaries = [prompt - 1]
        else:
            boundaries = [max(0, length // common * common - common) for length in (prompt - 1, prompt)]
        if junction:
            boundaries.append(junction)
            if self._drops_last_hit:
                boundaries.append(junction - self._size)
        return boundaries
