"""The installed scheduler gives the mirror's results to the last bit: one proves the other.

Runs are short cuts of the shipped scenarios, and of each feature under memory pressure.
"""

from __future__ import annotations

import pytest

from scheduler.release import parse_version
from sim.errors import InputError
from sim.installed import present
from sim.scenario import load_scenario
from sim.simulation import simulate
from tests.installed.helpers import INSTALLED, TABLES, differences, needs_vllm

pytestmark = needs_vllm

SYNC = "engine.async_scheduling=false"
TIGHT = ("engine.num_gpu_blocks_override=1600", "engine.max_model_len=8192")
SMALL_POOL = "engine.num_gpu_blocks_override=1024"
SIXTY = "workload.num_requests=60"
NGRAM = "engine.speculative_config={method: ngram, num_speculative_tokens: 4, acceptance: 0.5}"
DRAFT_MODEL = (
    "engine.speculative_config={method: draft_model, model: meta-llama/Llama-3.1-8B, "
    "num_speculative_tokens: 3, acceptance: 0.5}"
)
GPT_OSS = ("model=openai/gpt-oss-20b", "engine.num_gpu_blocks_override=3000", "engine.max_model_len=8192")
GEMMA = ("model=google/gemma-3-27b-it", "engine.num_gpu_blocks_override=3000", "engine.max_model_len=8192")

CASES = {
    "quickstart": ("quickstart", "horizon_s=10"),
    "preemptions": ("kv-starved", SIXTY),
    "preemptions, synchronous": ("kv-starved", SIXTY, SYNC),
    "long prompts cut short": ("kv-starved", SIXTY, "engine.long_prefill_token_threshold=200"),
    "no prefix cache": ("kv-starved", SIXTY, "engine.enable_prefix_caching=false"),
    "other limits": ("kv-starved", SIXTY, "engine.block_size=32", "engine.max_num_batched_tokens=512"),
    "pipeline": ("kv-starved", SIXTY, "engine.pipeline_parallel_size=2"),
    "pipeline, synchronous": ("kv-starved", SIXTY, "engine.pipeline_parallel_size=2", SYNC),
    "shared prefixes": ("shared-prefix", "horizon_s=4"),
    "shared prefixes, tight": ("shared-prefix", "horizon_s=4", *TIGHT),
    "sessions": ("chat-sessions", "horizon_s=30", *TIGHT),
    "priorities": ("client-classes", "horizon_s=10"),
    "priorities, tight": ("client-classes", "horizon_s=10", *TIGHT),
    "priorities, tight and synchronous": ("client-classes", "horizon_s=10", *TIGHT, SYNC),
    "closed loop": ("closed-loop", "horizon_s=8"),
    "daily peak": ("daily-peak", "horizon_s=10"),
    "aborts": ("impatient-clients", "horizon_s=60"),
    "long prompts": ("long-prompt", "horizon_s=10"),
    "adapters": ("lora", "horizon_s=6"),
    "adapters, tight": ("lora", "horizon_s=6", *TIGHT, "engine.lora.max_loras=2"),
    "eagle": ("speculative", "horizon_s=6", *TIGHT),
    "eagle, synchronous": ("speculative", "horizon_s=6", *TIGHT, SYNC),
    "ngram": ("speculative", "horizon_s=6", *TIGHT, NGRAM),
    "draft model": ("speculative", "horizon_s=10", *TIGHT, DRAFT_MODEL),
    "grammars": ("structured-output", "horizon_s=6", *TIGHT),
    "external cache": ("external-cache", "horizon_s=30", SMALL_POOL),
    "external cache, synchronous loads": (
        "external-cache",
        "horizon_s=30",
        SMALL_POOL,
        "cluster.external_cache.asynchronous=false",
    ),
    "external cache, given hits": (
        "external-cache",
        "horizon_s=30",
        SMALL_POOL,
        "cluster.external_cache.hits={kind: share, requests: 0.5, prompt: 0.6}",
    ),
    "windows": ("chat-sessions", "horizon_s=20", *GPT_OSS),
    "windows, synchronous": ("chat-sessions", "horizon_s=20", *GPT_OSS, SYNC),
    "windows and preemptions": ("kv-starved", "horizon_s=15", *GEMMA),
    "vLLM's victims": ("victims", "horizon_s=20", "engine.num_gpu_blocks_override=2000"),
    "replicas or tensor parallelism": ("tp-or-replicas", "horizon_s=6"),
    "mixed traffic": ("chat-and-code", "horizon_s=6"),
    "long answers": ("reasoning-h100", "horizon_s=10"),
}
LATER = {
    "prefill interval": ("kv-starved", SIXTY, "engine.prefill_interval=3", "engine.max_active=20"),
    "watermark": ("kv-starved", SIXTY, "engine.watermark=0.05", "engine.long_prefill_adaptive=true"),
    "step budget": (
        "kv-starved",
        SIXTY,
        "engine.reserve_full_prompt=false",
        "engine.max_num_scheduled_tokens=700",
    ),
    "pauses": (
        "kv-starved",
        SIXTY,
        "engine.pause_events=[{at_s: 2, state: paused_new}, {at_s: 3, state: paused_all}, "
        "{at_s: 4, state: unpaused}]",
    ),
    "drafts by batch": (
        "speculative",
        "horizon_s=6",
        *TIGHT,
        "engine.speculative_config={method: eagle, num_speculative_tokens: 3, acceptance: 0.5, "
        "drafts_by_batch: [[1, 8, 3], [9, 20, 1]]}",
    ),
}
"""Settings that 0.16.0 lacks."""


def run(scheduler: str, name: str, *overrides: str):
    version = f"engine.version='{INSTALLED}'"
    return simulate(load_scenario(name, [*overrides, version, f"engine.scheduler={scheduler}"]))


def assert_same(name: str, *overrides: str) -> None:
    mirror, installed = run("mirror", name, *overrides), run("vllm", name, *overrides)
    assert len(installed.steps) > 50, "else it shows little"
    assert differences(mirror, installed) == []
    assert installed.summary["mirrors"] == f"vLLM v{INSTALLED} itself"


@pytest.mark.parametrize("case", CASES)
def test_every_table_and_number_is_the_same(case):
    assert_same(*CASES[case])


@pytest.mark.parametrize("case", LATER)
def test_settings_of_later_releases_are_handed_on(case):
    if parse_version(INSTALLED) < parse_version("0.33.0"):
        pytest.skip("needs vLLM 0.33.0")
    assert_same(*LATER[case])


def test_runs_that_differ_are_told_apart():
    """The comparison above can fail: one preemption more moves tables and numbers."""
    usual, tighter = run("mirror", "kv-starved", SIXTY), run("vllm", "kv-starved", SIXTY, SMALL_POOL)
    assert set(TABLES) <= set(differences(usual, tighter))


def test_laws_are_checked_as_far_as_they_can_be_seen():
    version = f"engine.version='{INSTALLED}'"
    scenario = load_scenario("kv-starved", [SIXTY, version, "engine.scheduler=vllm"])
    assert simulate(scenario, check=True).summary["completed"] == 60


def test_free_blocks_that_can_be_hit_are_counted_right():
    """vLLM keeps no such count: at the end of a run it is that of a walk over all blocks."""
    result = run("vllm", "kv-starved", SIXTY)
    pool = result.engines[0].kv_cache.pool
    keys, free = pool.key_of_block, list(pool.free_queue)
    assert len(free) == pool.free_queue.size > 0
    assert sum(keys[block] is not None for block in free) == pool.num_cached_free > 0
    assert result.summary["kv_block_evictions"] > 0


def test_a_setting_that_the_installed_release_lacks_is_named():
    if present.vllm_version() != "0.16.0":
        pytest.skip("needs vLLM 0.16.0")
    with pytest.raises(InputError, match=r"engine\.watermark: the installed vLLM does not know this setting"):
        run("vllm", "kv-starved", SIXTY, "engine.watermark=0.1")


def test_an_engine_that_nobody_can_watch_is_not_explained():
    from sim.questions.explain import explain

    version = f"engine.version='{INSTALLED}'"
    with pytest.raises(InputError, match="cannot be watched: ask the mirror"):
        explain("kv-starved", overrides=[SIXTY, version, "engine.scheduler=vllm"])
