"""The external KV cache: what is found there, how long loads take, and who waits for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler import Request
from sim.cluster.external_cache import ExternalCache, ExternalCacheSpec, GivenShares, LruBlocks
from sim.cluster.servers import Link
from sim.simulation import simulate
from tests.cluster.helpers import FixedTimer, make_table, make_world, step_spans, token_times_s
from tests.features.helpers import faults_of, make_scenario


def caching(found_tokens=None, **more):
    """A cache of 1 byte a token on a link of 32 bytes a second: a block of 16 loads in half a second."""
    found = None if found_tokens is None else np.array(found_tokens)
    return ExternalCacheSpec(1.0, 32.0, found_tokens=found, **more)


# --- time ---------------------------------------------------------------------------------------------------


def test_a_load_takes_its_bytes_over_the_bandwidth():
    """Of a prompt of 100 tokens 64 are there: 2 s, and 0.25 s of latency. Then 36 are computed in 1 s."""
    timer = FixedTimer(1.0)
    world = make_world(make_table([0.0], 100, 2), timer, external_cache=caching([64], latency_s=0.25))
    world.run()
    assert timer.shapes[0].prefill_chunks == ((36, 64),)
    assert token_times_s(world, 0) == [3.25, 4.25]
    assert world.recorder.requests.cached_tokens[0] == 64


def test_others_compute_while_a_request_waits_for_its_load():
    """The load takes 2 s. The other request runs from 0 s on, the loaded one from the step at 2 s."""
    world = make_world(make_table([0.0, 0.0], [100, 10], [1, 5]), external_cache=caching([64, 0]))
    world.run()
    assert token_times_s(world, 1) == [1, 2, 3, 4, 5]
    assert token_times_s(world, 0) == [3]


def test_a_synchronous_load_holds_up_the_step_that_admits():
    """Both are in the first step, which begins when the load ends."""
    world = make_world(
        make_table([0.0, 0.0], [100, 10], [1, 2]), external_cache=caching([64, 0], asynchronous=False)
    )
    world.run()
    assert token_times_s(world, 0) == [3]
    assert token_times_s(world, 1) == [3, 4]
    assert step_spans(world) == [(2.0, 3.0), (3.0, 4.0)]


def test_loads_on_one_link_go_one_after_another():
    """64, 32 and 16 tokens: 2, 1 and half a second, ended at 2, 3 and 3.5 s. Each then computes its rest."""
    world = make_world(make_table([0.0] * 3, 65, 1), external_cache=caching([64, 32, 16]))
    world.run()
    assert [token_times_s(world, request)[0] for request in range(3)] == [3.0, 4.0, 5.0]
    link = world.connectors[0].link
    assert (link.num_bytes, link.busy_s) == (112.0, 3.5)


@pytest.mark.parametrize(("shared", "second_s"), [(True, 5.0), (False, 3.0)])
def test_replicas_share_a_link_or_have_their_own(shared, second_s):
    world = make_world(
        make_table([0.0, 0.0], 65, 1), external_cache=caching([64, 64], shared=shared), num_replicas=2
    )
    world.run()
    assert token_times_s(world, 0) == [3.0]
    assert token_times_s(world, 1) == [second_s]


def test_a_prompt_that_is_all_there_still_computes_its_last_token():
    """In the background all 64 tokens are loaded and one is computed again; else a whole block is left."""
    background, held = FixedTimer(1.0), FixedTimer(1.0)
    make_world(make_table([0.0], 64, 1), background, external_cache=caching([64])).run()
    make_world(make_table([0.0], 64, 1), held, external_cache=caching([64], asynchronous=False)).run()
    assert background.shapes[0].num_tokens == 1
    assert held.shapes[0].prefill_chunks == ((16, 48),)


def test_only_what_the_engine_does_not_have_is_loaded():
    """The second request finds 48 of its 64 tokens in the engine's own cache, 16 are loaded."""
    table = make_table([0.0, 10.0], 65, 1)
    table = replace(table, prompts=type(table.prompts)(distinct=1))
    world = make_world(table, external_cache=caching([48, 64]))
    world.run()
    connector = world.connectors[0]
    assert connector.link.num_bytes == 48
    stats = world.replicas[0].engine.connector_prefix_cache_stats
    assert (stats.queries, stats.hits) == (65 + 1, 48)


# --- contents -----------------------------------------------------------------------------------------------


def running(request_id, start, tokens, lora_name=None):
    return Request(request_id, ((start, tokens),), 10, lora_name=lora_name)


def finish(cache, request):
    """As if it had computed everything."""
    request.num_computed_tokens = request.num_tokens
    cache.note_ended(request)


def test_what_has_ended_is_found_in_full_blocks():
    cache = LruBlocks(1000, 16)
    cache.note_running(first := running(0, 1000, 50))
    assert cache.find(running(1, 1000, 50)) == 0
    finish(cache, first)
    assert cache.find(running(2, 1000, 50)) == 48
    assert cache.find(running(3, 1000, 40)) == 32
    assert cache.find(running(4, 1001, 50)) == 0


def test_an_adapter_has_its_own_blocks():
    cache = LruBlocks(1000, 16)
    finish(cache, running(0, 1000, 50, "a"))
    assert cache.find(running(1, 1000, 50)) == 0
    assert cache.find(running(2, 1000, 50, "a")) == 48


def test_a_prompt_is_there_as_soon_as_its_first_token():
    cache = LruBlocks(1000, 16)
    cache.note_running(first := running(0, 1000, 50))
    first.num_output_tokens = 1
    assert cache.find(running(1, 1000, 50)) == 48


def test_the_least_recently_used_text_goes_first_and_tails_before_heads():
    """Room for 6 blocks. A and B of 3 blocks fill it; A is used again; C of 2 blocks drives out B's tail."""
    cache = LruBlocks(6 * 16, 16)
    finish(cache, running(0, 1000, 48))
    finish(cache, running(1, 2000, 48))
    assert cache.find(running(2, 1000, 48)) == 48
    finish(cache, running(3, 3000, 32))
    assert len(cache) == 6
    assert cache.num_evicted == 2
    assert cache.find(running(4, 1000, 48)) == 48
    assert cache.find(running(5, 2000, 48)) == 16
    assert cache.find(running(6, 3000, 32)) == 32


def test_a_text_longer_than_the_cache_keeps_its_head():
    cache = LruBlocks(2 * 16, 16)
    finish(cache, running(0, 1000, 100))
    assert cache.find(running(1, 1000, 100)) == 32


def test_given_shares_are_cut_to_blocks():
    assert [GivenShares(np.array([0, 17, 64]), 16).find(running(i, 9, 99)) for i in range(3)] == [0, 16, 64]


def test_the_end_of_a_load_is_told_once_and_in_order():
    cache = ExternalCache(caching([64, 32]), GivenShares(np.array([64, 32]), 16), Link(32.0), 16)
    for request_id, tokens in ((0, 64), (1, 32)):
        assert cache.match(running(request_id, 9, 100), 0) == (tokens, True)
        cache.note_allocated(running(request_id, 9, 100), tokens)
    assert cache.load_ends_s == 2.0
    cache.now_s = 1.9
    assert cache.report() is None
    cache.now_s = 3.0
    assert cache.report().received == [0, 1]
    assert cache.report() is None
    assert not cache.is_loading


# --- whole runs ---------------------------------------------------------------------------------------------

CHAT = {
    "kind": "poisson",
    "rate_per_s": 3,
    "num_requests": 150,
    "lengths": {"kind": "uniform", "prompt_tokens": (300, 900), "output_tokens": (20, 80)},
}


def external(hits, **more):
    return {"external_cache": {"hits": hits, "bandwidth_gb_per_s": 20, **more}}


def test_given_shares_give_that_hit_rate():
    """Half of the requests find 80 % of their prompt: 40 % of all tokens, less what is cut off to blocks."""
    hits = {"kind": "share", "requests": 0.5, "prompt": 0.8}
    result = simulate(make_scenario({**CHAT, "num_requests": 1500}, cluster=external(hits)))
    summary, requests = result.summary, result.requests
    found = requests["cached_tokens"] > 0
    assert found.mean() == pytest.approx(0.5, abs=0.04)
    whole = (0.8 * requests["prompt_tokens"][found]).astype(int) // 16 * 16
    assert (requests["cached_tokens"][found] == whole).all()
    assert summary["external_prefix_cache_hits"] == whole.sum()
    assert summary["external_prefix_cache_queries"] == requests["prompt_tokens"].sum()
    assert summary["external_cache_loads"] == found.sum()


def test_bytes_are_those_of_the_model():
    """Llama-3.1-8B keeps 2 · 32 · 8 · 128 · 2 = 131,072 bytes a token, on however many GPUs."""
    hits = {"kind": "share", "prompt": 0.5}
    for tensor in (1, 4):
        engine = {"tensor_parallel_size": tensor}
        summary = simulate(make_scenario(CHAT, cluster=external(hits), engine=engine)).summary
        assert summary["external_cache_loaded_bytes"] == 131_072 * summary["external_prefix_cache_hits"]
        busy_s = summary["external_cache_loaded_bytes"] / 20e9
        assert summary["external_cache_link_busy_share"] == pytest.approx(busy_s / summary["clock_s"])


BOTH_WAYS = [("0.33.0", True), ("0.33.0", False), ("0.16.0", False)]


@pytest.mark.parametrize(("version", "asynchronous"), BOTH_WAYS)
def test_of_layers_with_a_window_only_the_window_is_loaded(version, asynchronous):
    """gpt-oss-20b: half of its 24 layers see 128 tokens, so of the 496 found half need 127."""
    cluster = external({"kind": "share", "prompt": 0.5}, asynchronous=asynchronous)
    lengths = {"kind": "fixed", "prompt_tokens": 1000, "output_tokens": 5}
    summary = simulate(
        make_scenario(
            {"kind": "burst", "num_requests": 1, "lengths": lengths},
            model="openai/gpt-oss-20b",
            engine={"version": version},
            cluster=cluster,
        ),
        check=True,
    ).summary
    assert summary["external_prefix_cache_hits"] == 496
    assert summary["external_cache_loaded_bytes"] == 2 * 24 * 8 * 64 * 2 * (496 + 127) / 2


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "mistralai/Mistral-7B-v0.1"])
@pytest.mark.parametrize(("version", "asynchronous"), BOTH_WAYS)
def test_laws_hold_where_loads_go_into_windows(model, version, asynchronous):
    """A pool too small for all, so that requests are preempted and loaded again."""
    result = simulate(
        make_scenario(
            {**CHAT, "rate_per_s": 20, "num_requests": 60},
            model=model,
            engine={"version": version, "num_gpu_blocks_override": 600, "max_model_len": 2000},
            cluster=external({"kind": "lru", "capacity_tokens": 10**6}, asynchronous=asynchronous),
        ),
        check=True,
    )
    assert result.summary["num_finished"] + result.summary["num_in_flight"] == 60
    assert result.summary["num_in_flight"] == 0 or result.stuck is not None


def test_a_cache_beyond_the_gpus_brings_sessions_back_that_lost_their_blocks():
    """KV of 6,000 tokens for sessions of thousands: the engine's own cache forgets while users think; the
    external one does not.
    """
    sessions = {**CHAT, "num_requests": 20, "sessions": {"turns": 4, "think_time_s": 30}}
    engine = {"num_gpu_blocks_override": 375, "max_model_len": 6000}
    lru = external({"kind": "lru", "capacity_tokens": 1_000_000})
    without = simulate(make_scenario(sessions, engine=engine)).summary
    beside = simulate(make_scenario(sessions, engine=engine, cluster=lru), check=True).summary
    assert without["prefix_cache_hit_rate"] < 0.35
    local = beside["prefix_cache_hits"] / beside["prefix_cache_queries"]
    together = local + (1 - local) * beside["external_prefix_cache_hit_rate"]
    assert together > 0.6
    assert beside["mean_ttft_ms"] < without["mean_ttft_ms"]


def test_replicas_share_what_is_cached_if_they_share_the_cache():
    """Sessions that change between two replicas find their history in a shared cache alone."""
    sessions = {**CHAT, "num_requests": 31, "sessions": {"turns": 2, "think_time_s": 5}}

    def hit_rate(shared):
        cluster = {"replicas": 2, **external({"kind": "lru", "capacity_tokens": 10**6}, shared=shared)}
        return simulate(make_scenario(sessions, cluster=cluster)).summary["external_prefix_cache_hits"]

    assert hit_rate(True) > hit_rate(False)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheduling", [False, True])
def test_laws_hold_under_loads_and_preemptions(asynchronous, scheduling):
    """A pool too small for all, with loads in the background or not, scheduling ahead or not."""
    hits = {"kind": "share", "requests": 0.6, "prompt": 0.9}
    result = simulate(
        make_scenario(
            {**CHAT, "rate_per_s": 20, "num_requests": 100},
            engine={"num_gpu_blocks_override": 400, "async_scheduling": scheduling, "max_model_len": 2000},
            cluster=external(hits, asynchronous=asynchronous, bandwidth_gb_per_s=2),
        ),
        check=True,
    )
    summary = result.summary
    assert summary["num_preemptions"] > 0
    assert summary["num_finished"] + summary["num_in_flight"] == 100
    assert summary["num_in_flight"] == 0 or result.stuck is not None


def test_the_same_seed_gives_the_same_run():
    hits = {"kind": "share", "requests": 0.5, "prompt": 0.5}
    scenario = make_scenario(CHAT, cluster={"replicas": 2, **external(hits)})
    assert simulate(scenario).requests.equals(simulate(scenario).requests)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (
            {"engine": {"preemption_mode": {"kind": "offload"}}},
            "cluster.external_cache: an engine has one KV connector, and preemption_mode offload takes it; "
            "choose one of them",
        ),
        (
            {"model": "openai/gpt-oss-20b", "engine": {"version": "0.16.0"}},
            "cluster.external_cache.asynchronous: openai/gpt-oss-20b has layers with and without windows, "
            "and vLLM 0.16.0 cannot load both in the background (0.16.0 fails, 0.33.0 can); false, or a "
            "later version",
        ),
    ],
)
def test_what_cannot_be_is_refused(more, fault):
    hits = {"kind": "share"}
    assert fault in faults_of({"kind": "burst", "num_requests": 1}, cluster=external(hits), **more)
