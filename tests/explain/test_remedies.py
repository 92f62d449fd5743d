"""Changes that are tried: the same requests, one change each, told as better, worse or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.jobs.options import RunOptions
from sim.questions.explain.candidates import Candidate
from sim.questions.explain.observe import observe
from sim.questions.explain.remedies import (
    Effect,
    Remedy,
    Source,
    _changed,
    effects_of,
    prompt_edges,
    ranked,
    try_remedies,
    verdict,
)
from sim.scenario import Scenario
from tests.cli.helpers import write_scenario

TIGHT = """\
name: tight
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {max_model_len: 4096, num_gpu_blocks_override: 120}
workload:
  kind: poisson
  rate_per_s: 20
  num_requests: 40
  lengths: {kind: fixed, prompt_tokens: 300, output_tokens: 200}
slo: {ttft_p99: 1s, tpot_p99: 40ms}
"""


def tried(tmp_path: Path, *overrides: str) -> tuple[Effect, list[Remedy]]:
    source = Source(str(write_scenario(tmp_path, TIGHT)))
    observed = observe(source.load())
    proposals = [Candidate(text, (text,)) for text in overrides]
    remedies = try_remedies(source, observed.result.scenario, proposals, 99, options=RunOptions(workers=1))
    return effects_of(observed, 99).as_it_is, remedies


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYSERVE_CACHE", str(tmp_path / "cache"))


def test_more_blocks_help_and_fewer_places_hurt(tmp_path: Path):
    before, (more, fewer, nothing) = tried(
        tmp_path,
        "engine.kv_cache_dtype=fp8",
        "engine.max_num_seqs=1",
        "engine.long_prefill_token_threshold=4000",
    )
    assert more.effect is not None
    assert "better" in verdict(more.effect, before, "ttft")
    assert fewer.effect is not None
    assert "WORSE" in verdict(fewer.effect, before, "ttft")
    assert nothing.effect is not None
    assert verdict(nothing.effect, before, "ttft") == "no effect"
    assert ranked([fewer, nothing, more], "ttft") == [more, nothing, fewer]


def test_a_change_of_nothing_gives_the_same_numbers_as_the_watched_run(tmp_path: Path):
    before, (same,) = tried(tmp_path, "engine.max_num_seqs=1024")
    assert same.effect is not None
    assert same.effect.num_preemptions == before.num_preemptions
    for metric, value in before.latency_s.items():
        assert same.effect.latency_s[metric] == pytest.approx(value, rel=1e-6)


def test_what_cannot_be_run_says_why_and_the_others_are_run_all_the_same(tmp_path: Path):
    _, (impossible, possible) = tried(
        tmp_path, "engine.tensor_parallel_size=64", "engine.tensor_parallel_size=2"
    )
    assert impossible.effect is None
    assert "64" in str(impossible.error)
    assert possible.effect is not None
    assert possible.effect.num_gpus == 2
    assert ranked([impossible, possible], "ttft") == [possible, impossible]


def test_blocks_that_were_given_follow_the_memory_plan(tmp_path: Path):
    """Half as many bytes a token make twice as many blocks, also where the number was written down."""
    source = Source(str(write_scenario(tmp_path, TIGHT)))
    changes = ("engine.kv_cache_dtype=fp8", "cluster.replicas=2", "engine.gpu_memory_utilization=0.8")
    changed = [
        _changed(source, source.load(), Candidate("", (change,)), allow_plugins=False) for change in changes
    ]
    blocks = [scenario.engine for scenario in changed if isinstance(scenario, Scenario)]
    twice, same, fewer = (engine.num_gpu_blocks_override for engine in blocks)
    assert twice == pytest.approx(240, abs=1)
    assert same == 120
    assert 60 < fewer < 115


def test_ttft_by_length_of_prompt(tmp_path: Path):
    source = Source(str(write_scenario(tmp_path, TIGHT)))
    effect = effects_of(observe(source.load()), 99, [0, 1000]).as_it_is
    short, long = effect.by_prompt
    assert short.num_requests == 40
    assert long.num_requests == 0
    assert short.percentile_s == pytest.approx(effect.latency_s["ttft"])


def test_classes_of_prompts_are_for_prompts_of_several_kinds():
    import numpy as np

    alike = np.full(100, 500.0)
    mixed = np.append(alike, 100_000.0)
    assert prompt_edges(alike, 8192) == []
    assert prompt_edges(mixed, 8192) == [0, 64_000]
    assert prompt_edges(mixed, 200_000) == []
    assert prompt_edges(alike[:0], 8192) == []
