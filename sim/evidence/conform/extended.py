"""What extended recordings hold beside the decisions: KV events, scheduler statistics, equal hashes.

A recording names what it has in the list `extras` at its top level; `tests/conformance/campaign/README.md`
describes the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from scheduler import EngineCore
from scheduler.kv_cache.pool import BlockPool
from scheduler.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from scheduler.state import PrefixCacheStats, SpecDecodeStats
from sim.evidence.conform.case import Case, Record

KV_EVENTS = "kve"
"""The key of a step's KV events."""


class Classes:
    """Small numbers in the order of first appearance: what is equal has equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def number(self, value: object) -> int:
        """The number of the class that a value belongs to."""
        return self._numbers.setdefault(value, len(self._numbers))


class ExtendedRecorder:
    """Makes those of the extra keys that a case has. `listens`: it may listen to KV events, which takes the
    engine its cohort; else their key is left out.
    """

    def __init__(self, case: Case, engine: EngineCore, *, listens: bool) -> None:
        self._engine = engine
        self._names_groups = case.format != "sched-oracle/1"
        self._makes_statistics = "stats" in case.extras
        self._makes_classes = "hash_classes" in case.extras
        self._num_spec_tokens = (case.config.get("spec") or {}).get("k", 0)
        self._hashes = Classes()
        self._events: list[KVCacheEvent] = []
        self._prefix, self._connector, self._spec = [0] * 6, [0] * 6, SpecDecodeStats()
        if listens and KV_EVENTS in case.extras:
            engine.observe_kv_events(self._events.extend)

    def after_update(self, record: Record) -> None:
        """Put what a step's update told into its record."""
        if self._events:
            record[KV_EVENTS] = [self._event(event) for event in self._events]
            self._events.clear()
        if self._makes_statistics:
            record["stats"] = self._statistics()

    def at_the_end(self, final: Record) -> None:
        """Which of the hashed blocks, in the order of their ids, have equal hashes."""
        if self._makes_classes:
            pool, classes = self._engine.kv_cache.pool, Classes()
            groups = pool.group_of_block if isinstance(pool, BlockPool) else [0] * pool.num_blocks
            keys = enumerate(pool.key_of_block)
            final["hash_classes"] = [classes.number((key, groups[b])) for b, key in keys if key is not None]

    def _event(self, event: KVCacheEvent) -> dict[str, object]:
        wire = event.as_wire()
        if isinstance(event, BlockStored | BlockRemoved):
            wire["block_hashes"] = [self._hashes.number(h) for h in event.block_hashes]
        if isinstance(event, BlockStored):
            if event.parent_block_hash is not None:
                wire["parent_block_hash"] = self._hashes.number(event.parent_block_hash)
            wire["token_ids"] = [list(part) for part in event.token_ranges]
            if event.lookahead_ranges is not None:
                wire["lookahead_token_ids"] = [
                    [list(part) for part in parts] for parts in event.lookahead_ranges
                ]
        if not self._names_groups:
            for name in ("group_idx", "extra_keys", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"):
                wire.pop(name, None)
        return wire

    def _statistics(self) -> dict[str, object]:
        engine = self._engine
        waiting, pool = engine.state.waiting, engine.kv_cache.pool
        row: dict[str, object] = {"running": engine.num_running, "waiting": waiting.size}
        if self._names_groups:
            num_skipped = len(waiting.deferred)
            row["waiting"] = waiting.size - num_skipped
            if num_skipped:
                row["skipped"] = num_skipped
        usable = pool.num_blocks - 1
        row["usage"] = 1.0 - engine.kv_cache.num_free_blocks / usable if usable else 0.0
        prefix, connector = _counts(engine.prefix_cache_stats), _counts(engine.connector_prefix_cache_stats)
        for key, now, before in (("prefix", prefix, self._prefix), ("connector", connector, self._connector)):
            since = _less(now, before)
            if any(since):
                row[key] = since
        self._prefix, self._connector = prefix, connector
        row.update(self._drafts())
        return row

    def _drafts(self) -> dict[str, object]:
        now, before, k = self._engine.spec_decode_stats, self._spec, self._num_spec_tokens
        if now.num_drafts == before.num_drafts:
            return {}
        told: dict[str, object] = {
            "spec": [
                now.num_drafts - before.num_drafts,
                now.num_draft_tokens - before.num_draft_tokens,
                now.num_accepted_tokens - before.num_accepted_tokens,
            ],
            "accepted_at": _less(_padded(now.accepted_at, k), _padded(before.accepted_at, k)),
        }
        if self._names_groups:
            told["drafted_at"] = _less(_padded(now.drafted_at, k), _padded(before.drafted_at, k))
        self._spec = now.copy()
        return told


def _counts(stats: PrefixCacheStats) -> list[int]:
    return list(astuple(stats)[:6])


def _less(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(now, before, strict=True)]


def _padded(counts: Sequence[int], length: int) -> list[int]:
    return [*counts, *[0] * (length - len(counts))]
