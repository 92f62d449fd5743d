"""Forgetting unused hash numbers must not be seen: recorded runs stay identical if it happens at every
arrival.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.kv_cache.hashes import BlockHasher
from sim.evidence.conform import conform

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ("combined", "async_multiturn", "prefix_evict", "hybrid_sizes", "streaming_stale", "n_lookhash")


def test_sweeps_at_every_arrival_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = []
    sweep = BlockHasher.sweep

    def sweep_always(hasher: BlockHasher, keys: list[int]) -> None:
        before = hasher.num_numbered
        sweep(hasher, keys)
        sweeps.append(before - hasher.num_numbered)
        hasher.sweep_at = -1

    monkeypatch.setattr(BlockHasher, "sweep", sweep_always)
    monkeypatch.setattr("scheduler.kv_cache.hashes.SMALLEST_SWEEP", -1)
    files = [path for family in FAMILIES for path in sorted(GOLDEN.glob(f"*/{family}-[0-5].json.gz"))]
    assert len(files) > 30
    assert conform(files).passed
    assert sum(sweeps) > 100
