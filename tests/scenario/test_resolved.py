"""A resolved scenario has every default written out, and loads again to the same run."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from cost_models import engine_defaults
from sim.scenario import load_scenario, scenario_names
from tests.scenario.helpers import GOOD, load_text


@pytest.mark.parametrize("name", scenario_names())
def test_a_resolved_scenario_loads_again_to_itself(name: str, tmp_path: Path) -> None:
    text = load_scenario(name).dump_resolved()
    again = load_text(tmp_path, text)
    assert again.dump_resolved() == text
    assert again.name == name


def test_nothing_is_left_to_a_default(tmp_path: Path) -> None:
    scenario = load_text(tmp_path, GOOD)
    text = scenario.dump_resolved()
    defaults = engine_defaults("0.16.0", "h100-sxm")
    assert f"# dryserve {version('dryserve')}; mirrors vLLM 0.16.0; every default written out\n" in text
    for line in (
        "  replicas: 1",
        "    kind: round_robin",
        "  block_size: 16",
        "  max_num_seqs: 128",
        f"  max_num_batched_tokens: {defaults.max_num_batched_tokens}",
        f"  gpu_memory_utilization: {defaults.gpu_memory_utilization}",
        f"  async_scheduling: {str(defaults.async_scheduling).lower()}",
        '  ttft_p99: "1.0s"',
        "  over_length: reject",
    ):
        assert f"\n{line}\n" in text


def test_every_setting_of_the_engine_is_resolved_but_overrides(tmp_path: Path) -> None:
    """And what is off stays off."""
    engine = load_text(tmp_path, GOOD, ["engine.version=0.33.0"]).resolved.engine
    features = ["speculative_config", "lora", "grammar"]
    assert [name for name, value in engine if value is None] == [
        "scheduler_cls",
        "num_gpu_blocks_override",
        *features,
    ]


def test_switches_that_a_release_lacks_stay_open(tmp_path: Path) -> None:
    engine = load_text(tmp_path, GOOD).resolved.engine
    lacking = ["max_num_scheduled_tokens", "max_active", "window_retention_tokens"]
    features = ["speculative_config", "lora", "grammar"]
    assert [name for name, value in engine if value is None] == [
        "scheduler_cls",
        "num_gpu_blocks_override",
        *lacking,
        *features,
    ]


def test_a_default_number_of_requests_never_exceeds_the_budget(tmp_path: Path) -> None:
    overrides = ["engine.max_num_seqs=null", "engine.max_num_batched_tokens=64"]
    assert load_text(tmp_path, GOOD, overrides).resolved.engine.max_num_seqs == 64


def test_a_default_budget_never_exceeds_what_all_requests_can_have(tmp_path: Path) -> None:
    """4 sequences of at most 300 tokens: a step takes no more than 1,200. A budget that is given stays."""
    few = ["engine.max_num_seqs=4", "engine.max_model_len=300"]
    assert load_text(tmp_path, GOOD, few).resolved.engine.max_num_batched_tokens == 1200
    given = [*few, "engine.max_num_batched_tokens=2048"]
    assert load_text(tmp_path, GOOD, given).resolved.engine.max_num_batched_tokens == 2048


@pytest.mark.parametrize(("release", "ahead"), [("0.16.0", False), ("0.33.0", True)])
def test_drafts_by_ngrams_are_scheduled_ahead_of_by_later_releases(
    tmp_path: Path, release: str, ahead: bool
) -> None:
    drafts = "engine.speculative_config={method: ngram, num_speculative_tokens: 3, acceptance: 0.6}"
    engine = load_text(tmp_path, GOOD, [drafts, f"engine.version={release}"]).resolved.engine
    assert engine.async_scheduling is ahead


@pytest.mark.parametrize(("release", "tokens"), [("0.16.0", 64), ("0.33.0", 32)])
def test_blocks_of_latent_attention_are_those_of_release_and_gpu(
    tmp_path: Path, release: str, tokens: int
) -> None:
    asked = ["model=deepseek-ai/DeepSeek-V3", "gpu=b200", f"engine.version={release}"]
    assert load_text(tmp_path, GOOD, asked).resolved.engine.block_size == tokens
    assert load_text(tmp_path, GOOD, [*asked, "engine.block_size=16"]).resolved.engine.block_size == 16


def test_without_chunked_prefill_the_default_budget_takes_the_longest_prompt(tmp_path: Path) -> None:
    overrides = ["engine.enable_chunked_prefill=false", "engine.max_model_len=100000"]
    assert load_text(tmp_path, GOOD, overrides).resolved.engine.max_num_batched_tokens == 100_000


def test_two_spellings_of_one_scenario_resolve_to_the_same_text(tmp_path: Path) -> None:
    spelt_out = load_text(
        tmp_path, GOOD, ["engine.block_size=16", "slo={ttft_p99: 1000ms}", "workload.rate_per_s=2.50"]
    )
    assert spelt_out.dump_resolved() == load_text(tmp_path, GOOD).dump_resolved()
