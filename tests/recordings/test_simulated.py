"""Recordings of simulated engines replay identically, whatever the engine does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.evidence.recorded import conform_recordings
from sim.simulation import simulate

SMALL = ["workload.num_requests=60"]
OF_ALL_KINDS = {
    "sessions": ["workload.sessions={turns: 3, think_time_s: 0.1}"],
    "lora": ["workload.lora={num_adapters: 4}", "engine.lora={max_loras: 2}"],
    "grammars": ["workload.grammar={num_grammars: 3}", "engine.grammar={compile_s: 0.05}"],
    "a pipeline ahead": ["engine.version=0.33.0", "engine.pipeline_parallel_size=2"],
    "windows": ["engine.version=0.33.0", "model=openai/gpt-oss-20b"],
    "priorities": ["engine.scheduling_policy=priority", "workload.rate_per_s=100"],
}


@pytest.mark.parametrize("settings", OF_ALL_KINDS.values(), ids=OF_ALL_KINDS)
def test_a_simulated_engine_replays_identically(tmp_path: Path, settings: list[str]) -> None:
    path = tmp_path / "r.jsonl.gz"
    simulate("kv-starved", [*SMALL, *settings], record=path)
    report = conform_recordings([path])
    assert report.passed, report.as_text()


def test_what_is_not_recorded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    simulate("kv-starved", [*SMALL, "engine.victim_policy={kind: least_computed}"], record=path)
    assert "least_computed is no policy of vLLM's" in conform_recordings([path]).as_text()
