"""KV events: what enters and leaves the prefix cache, step by step, in the words of vLLM's own events.

Names and fields are those of `vllm.distributed.kv_events`, which routers subscribe to. A hash is an integer
that equals another's if and only if the texts up to the ends of the blocks, LoRA adapter and cache salt are
equal (see `scheduler.kv_cache.hashes`). Two differences to the wire: events of releases that do not name
groups yet name them too, and the deprecated number of a LoRA adapter is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.config import GroupKind, KVCacheConfig
from scheduler.request import Request
from scheduler.tokens import TokenRange

MEDIUM = "GPU"
"""Where the blocks of an engine are; offloaded ones are not told of."""

_KIND_NAMES = {
    GroupKind.FULL: "full_attention",
    GroupKind.SLIDING: "sliding_window",
    GroupKind.CHUNKED_LOCAL: "chunked_local_attention",
    GroupKind.MAMBA: "mamba",
}


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks of a group that follow one another in a text have entered the prefix cache.

    The text is `token_ranges` behind the block `parent_block_hash` (None: from the start). Where only some of
    its blocks entered, because no hit can use the others, `block_hashes` names those alone, perhaps none.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ranges: tuple[TokenRange, ...]
    block_size: int
    lora_name: str | None
    extra_keys: tuple[tuple[str, ...] | None, ...]
    """For each hash the adapter's name and, in a text's first block, its cache salt; None without any."""
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None
    lookahead_ranges: tuple[tuple[TokenRange, ...], ...] | None
    """For each hash the tokens behind its block that it covers too; None without lookahead hashes."""

    def as_wire(self) -> dict[str, object]:
        """The event with vLLM's names, tokens as lists of ids; what is None is left out."""
        return _wire(
            "BlockStored",
            block_hashes=list(self.block_hashes),
            parent_block_hash=self.parent_block_hash,
            token_ids=_ids(self.token_ranges),
            block_size=self.block_size,
            medium=MEDIUM,
            lora_name=self.lora_name,
            extra_keys=[None if keys is None else list(keys) for keys in self.extra_keys] or None,
            group_idx=self.group_idx,
            kv_cache_spec_kind=self.kv_cache_spec_kind,
            kv_cache_spec_sliding_window=self.kv_cache_spec_sliding_window,
            lookahead_token_ids=None
            if self.lookahead_ranges is None
            else [_ids(ranges) for ranges in self.lookahead_ranges],
        )


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block of a group has left the prefix cache; another with the same hash may still be there."""

    block_hashes: tuple[int, ...]
    group_idx: int

    def as_wire(self) -> dict[str, object]:
        """The event with vLLM's names."""
        return _wire(
            "BlockRemoved", block_hashes=list(self.block_hashes), medium=MEDIUM, group_idx=self.group_idx
        )


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was emptied, all groups of it."""

    def as_wire(self) -> dict[str, object]:
        """The event with vLLM's names."""
        return _wire("AllBlocksCleared")


KVCacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
KVEventsObserver: TypeAlias = Callable[[Sequence[KVCacheEvent]], None]
"""Gets the events since the last update, in order, at the end of each update that has any."""


class KVEventLog:
    """Events since they were last taken."""

    def __init__(self, config: KVCacheConfig, hash_lookahead: int) -> None:
        self._groups = config.groups
        self._hash_size = config.hash_block_size
        self._lookahead = hash_lookahead
        self._events: list[KVCacheEvent] = []
        self._boundary_keys: dict[int, int] = {}
        """Of blocks that are hashed up to a boundary inside them: the key there."""

    def note_stored(
        self, request: Request, group: int, first: int, full: int, entered: Iterable[int]
    ) -> None:
        """Of the blocks `first` … `full` - 1 of a request's table those in `entered` are in the cache now."""
        self._note_stored(request, group, self._groups[group].block_size, first, full, entered)

    def note_boundary(self, request: Request, group: int, boundary: int, block: int) -> None:
        """A larger block is hashed up to this number of tokens too, a boundary of hash blocks inside it."""
        self._boundary_keys[block] = request.block_keys[boundary // self._hash_size - 1]
        last = boundary // self._hash_size - 1
        self._note_stored(request, group, self._hash_size, last, last + 1, (last,))

    def note_removed(self, key: int, group: int, block: int) -> None:
        """The block with this key left the cache of this group: evicted, or its KV is bad."""
        self._events.append(BlockRemoved((key,), group))
        boundary_key = self._boundary_keys.pop(block, key)
        if boundary_key != key:
            self._events.append(BlockRemoved((boundary_key,), group))

    def note_cleared(self) -> None:
        """The cache was emptied."""
        self._boundary_keys.clear()
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KVCacheEvent]:
        """The events noted, which are then forgotten here."""
        events, self._events = self._events, []
        return events

    def _note_stored(
        self, request: Request, group: int, block_size: int, first: int, full: int, entered: Iterable[int]
    ) -> None:
        spec, keys, tokens = self._groups[group], request.block_keys, request.tokens
        step, ahead = block_size // self._hash_size, self._lookahead
        blocks = list(entered)
        salt = request.cache_salt
        lora = () if request.lora_name is None else (request.lora_name,)
        ends = [(i + 1) * block_size for i in blocks]
        self._events.append(
            BlockStored(
                tuple(keys[(i + 1) * step - 1] for i in blocks),
                keys[first * step - 1] if first else None,
                tokens.pieces(first * block_size, full * block_size),
                block_size,
                request.lora_name,
                tuple((*lora, salt) if salt is not None and not i else lora or None for i in blocks),
                group,
                _KIND_NAMES[spec.kind],
                spec.window if spec.kind is GroupKind.SLIDING else None,
                tuple(tokens.pieces(end, end + ahead) for end in ends) if ahead else None,
            )
        )


def _ids(ranges: Iterable[TokenRange]) -> list[int]:
    return [token for first, count in ranges for token in range(first, first + count)]


def _wire(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind, **{name: value for name, value in fields.items() if value is not None}}
