"""Prefix lookup: the longest text start whose KV is cached in every group.

Groups with the same spec are looked up together. With several specs each finds its own longest start within
what the others have found, full attention first, until all agree on a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.config import GroupKind, KVCacheConfig, KVGroupSpec
from scheduler.kv_cache.interface import PrefixHits
from scheduler.kv_cache.manager import GroupManager, shorten
from scheduler.release import Rules
from scheduler.request import Request


@dataclass(slots=True)
class _SpecSet:
    """The groups with one spec: they are looked up together."""

    manager: GroupManager
    groups: list[int] = field(default_factory=list)


class PrefixLookup:
    """Lookups of one engine; `drops_last_hit`: the drafter needs the last hit block computed again."""

    def __init__(
        self, config: KVCacheConfig, managers: Sequence[GroupManager], rules: Rules, *, drops_last_hit: bool
    ) -> None:
        self.alignment = config.common_block_size
        if rules.checkpoint_states:
            self.alignment = config.common_state_size
        """Hit lengths are multiples of so many tokens."""
        self._num_groups = len(managers)
        self._drops_last_hit = drops_last_hit
        self._drop_once = rules.drop_last_hit_once
        sets: dict[KVGroupSpec, _SpecSet] = {}
        for manager in managers:
            sets.setdefault(manager.spec, _SpecSet(manager)).groups.append(manager.index)
        self._spec_sets = sorted(sets.values(), key=lambda one: one.manager.spec.kind is not GroupKind.FULL)

    def find(self, request: Request) -> PrefixHits:
        """What is cached of a request, its keys being up to date; at most all but its last token."""
        longest = request.num_tokens - 1
        if len(self._spec_sets) > 1 or (self._drop_once and self._num_groups > 1):
            return self._find_common_hits(request, longest)
        spec_set = self._spec_sets[0]
        size = spec_set.manager.lookup_size
        drop = self._drops_last_hit and spec_set.manager.gives_up_last_hit
        blocks = self._look_up(spec_set, request, longest, size, drop)
        tables = [spec_set.manager.table_of(group_hits) for group_hits in blocks]
        return PrefixHits(tables, len(blocks[0]) * size)

    def _look_up(
        self, spec_set: _SpecSet, request: Request, longest: int, alignment: int, drop_last: bool
    ) -> list[list[int]]:
        manager = spec_set.manager
        step = manager.keys_per_block * manager.lookup_size // manager.block_size
        keys = request.block_keys.all()
        if step > 1:
            keys = keys[step - 1 :: step]
        return manager.longest_hit(keys, longest, spec_set.groups, drop_last, alignment)

    def _find_common_hits(self, request: Request, longest: int) -> PrefixHits:
        """Several groups: each spec may only shorten what the others found, until all agree on a length.

        Where the release has each spec give up its last block for the drafter only once, it looks one block
        further to do so (also beyond the text's last token), until a later pass that gives up none has
        shortened the length. There groups of a single spec are searched likewise, and every spec of full
        attention is cut to the length in the end; earlier releases cut the first alone.
        """
        alignment, once = self.alignment, self._drop_once
        found: list[list[list[int]] | None] = [None] * len(self._spec_sets)
        full_first = self._spec_sets[0].manager.spec.kind is GroupKind.FULL
        one_pass = full_first and len(self._spec_sets) == 2
        length, furthest = longest, 0
        dropped: set[int] = set()
        while True:
            before = length
            for i, spec_set in enumerate(self._spec_sets):
                size = spec_set.manager.lookup_size
                known = found[i]
                if known is not None and spec_set.manager.spec.kind is GroupKind.FULL:
                    length = length // size * size
                    continue
                drop = self._drops_last_hit and i not in dropped and spec_set.manager.gives_up_last_hit
                limit = length + size if drop and once else length
                blocks = self._look_up(spec_set, request, limit, alignment, drop)
                found[i] = blocks
                reached = len(blocks[0]) * size
                if drop and once:
                    dropped.add(i)
                elif reached < length:
                    dropped.clear()
                length = reached
                furthest = max(furthest, length)
            if one_pass or length >= before:
                break
        hits = PrefixHits([[] for _ in range(self._num_groups)])
        for i, (spec_set, blocks_found) in enumerate(zip(self._spec_sets, found, strict=True)):
            assert blocks_found is not None
            if spec_set.manager.spec.kind is GroupKind.FULL and (i == 0 or once):
                shorten(blocks_found, length // spec_set.manager.block_size)
            for group, group_hits in zip(spec_set.groups, blocks_found, strict=True):
                hits.blocks[group] = spec_set.manager.table_of(group_hits)
        hits.num_tokens = length
        request.junction_tokens = furthest if furthest > length else 0
        return hits
