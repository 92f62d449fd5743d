"""The law of the books: for every request the parts are its latency, whatever kind of run it was in."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.questions.explain.observe import Observed, observe
from sim.questions.explain.parts import KEYS, PREEMPTED
from sim.questions.explain.step_phases import Gaps
from sim.results.metrics import inter_token_gaps, percentile
from sim.scenario import Scenario
from sim.simulation import simulate
from tests.explain.helpers import make_scenario

EXACT_S = 1e-9

MIXED = {
    "kind": "lognormal",
    "prompt": {"mean": 400, "sigma": 1.0, "max": 3000},
    "output": {"mean": 60, "sigma": 0.8, "max": 300},
}

KINDS: dict[str, dict[str, Any]] = {
    "idle": {"rate": 0.5},
    "few blocks": {"num_gpu_blocks_override": 260},
    "few blocks, synchronous": {"num_gpu_blocks_override": 260, "async_scheduling": False},
    "few blocks, a late release": {"num_gpu_blocks_override": 260, "version": "0.33.0"},
    "few places": {"max_num_seqs": 4},
    "small budget": {"max_num_batched_tokens": 64, "max_num_seqs": 48},
    "budget below the running": {
        "version": "0.33.0",
        "max_num_scheduled_tokens": 8,
        "max_num_seqs": 64,
        "requests": 40,
    },
    "no chunks": {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
    "pipeline": {"pipeline_parallel_size": 4, "num_gpu_blocks_override": 300},
    "threshold and interval": {
        "version": "0.33.0",
        "prefill_interval": 3,
        "long_prefill_token_threshold": 128,
    },
    "victims and watermark": {
        "num_gpu_blocks_override": 260,
        "victim_policy": {"kind": "least_computed"},
        "watermark": 0.05,
    },
    "offload": {"num_gpu_blocks_override": 260, "preemption_mode": {"kind": "offload"}},
    "speculation": {
        "speculative_config": {"method": "eagle", "num_speculative_tokens": 2, "acceptance": (0.7, 0.5)}
    },
    "priorities": {"scheduling_policy": "priority", "num_gpu_blocks_override": 260},
    "adapters": {
        "lora": {"max_loras": 1, "max_lora_rank": 16},
        "workload": {"lora": {"num_adapters": 4}},
    },
    "grammars": {
        "grammar": {"compile_s": 0.3, "workers": 1},
        "workload": {"grammar": {"share": 0.5, "num_grammars": 5}},
    },
    "impatience": {"max_num_seqs": 4, "workload": {"timeouts": {"total_s": 4.0}}},
    "a fleet": {"cluster": {"replicas": 3, "router": {"kind": "least_outstanding"}}, "rate": 40.0},
    "an external cache": {
        "cluster": {
            "external_cache": {
                "hits": {"kind": "lru", "capacity_tokens": 100_000},
                "bandwidth_gb_per_s": 20,
                "latency_s": 0.002,
            }
        },
        "workload": {"prefixes": {"groups": 3, "prefix_tokens": 512}},
    },
    "a horizon": {"num_gpu_blocks_override": 260, "horizon_s": 3.0},
    "a pause": {
        "pause_events": ({"at_s": 1.0, "state": "paused_all"}, {"at_s": 2.0, "state": "unpaused"}),
        "version": "0.33.0",
    },
}


def assert_the_books_balance(observed: Observed) -> None:
    books, times = observed.books, observed.result.times
    assert len(books.request) == times.done.sum() > 0
    assert books.ttft.sum(axis=1) == pytest.approx(times.ttft_s[books.request], abs=EXACT_S)
    assert books.e2e.sum(axis=1) == pytest.approx(times.e2e_s[books.request], abs=EXACT_S)
    assert books.ttft.min() >= 0.0
    assert books.e2e.min() >= -EXACT_S
    assert np.all(books.e2e - books.ttft >= -EXACT_S)


def assert_they_agree_with_the_tables(observed: Observed) -> None:
    """What the run's own tables say of queueing and stalls is in the books too."""
    requests = observed.result.requests.set_index("request_id").loc[observed.books.request]
    waits = [
        KEYS.index(k)
        for k in ("front_end", "under_way", "token_budget", "kv_blocks", "seq_slots", "held_back")
    ]
    queued = (requests["first_scheduled_s"] - requests["arrival_s"]).to_numpy()
    assert np.all(observed.books.ttft[:, waits].sum(axis=1) >= queued - 1e-8)
    assert observed.books.e2e[:, PREEMPTED] == pytest.approx(requests["stalled_s"].to_numpy(), abs=1e-8)


def assert_gaps_are_those_of_the_metric(observed: Observed) -> None:
    recorder, tokens = observed.result.recording
    times, books = observed.result.times, observed.books
    gaps = Gaps(tokens, observed.steps, books.gap, books.gap_end_s, times.done).latencies
    known = inter_token_gaps(recorder, tokens, times.done)
    assert gaps.size == known.size
    if not known.size:
        return
    expanded = np.repeat(gaps.latency_s, gaps.counts)
    for percent in (1, 50, 90, 99, 100):
        assert np.percentile(expanded, percent) == pytest.approx(percentile(known, percent), abs=EXACT_S)
    for columns in gaps.parts:
        assert columns.parts[1:].min(initial=0.0) >= -EXACT_S


def scenario_of(kind: str) -> Scenario:
    return make_scenario(**{"lengths": MIXED, "requests": 80, "rate": 25.0} | KINDS[kind])


@cache
def run_of(kind: str) -> Observed:
    return observe(scenario_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_every_request_add_up(kind: str) -> None:
    observed = run_of(kind)
    assert_the_books_balance(observed)
    assert_they_agree_with_the_tables(observed)
    assert_gaps_are_those_of_the_metric(observed)


@pytest.mark.parametrize("kind", ["few blocks", "a fleet", "an external cache", "offload", "speculation"])
def test_who_is_watched_does_exactly_the_same(kind: str) -> None:
    watched, alone = run_of(kind).result, simulate(scenario_of(kind))
    assert watched.summary == alone.summary
    assert watched.requests.equals(alone.requests)
    assert watched.steps.equals(alone.steps)


def assert_they_are_the_same(one: Observed, other: Observed) -> None:
    for name in ("request", "ttft", "e2e", "behind_s", "gap_request", "gap_end_s", "gap"):
        expected = getattr(other.books, name)
        assert getattr(one.books, name) == pytest.approx(expected, abs=EXACT_S), name


@pytest.mark.parametrize("kind", KINDS)
def test_planned_steps_are_booked_as_single_ones(kind: str) -> None:
    assert_they_are_the_same(run_of(kind), observe(scenario_of(kind), plain=True))


@given(
    blocks=st.integers(100, 400),
    budget=st.sampled_from([32, 100, 512, 2048]),
    places=st.integers(1, 40),
    rate=st.sampled_from([2.0, 20.0, 200.0]),
    ahead=st.booleans(),
    version=st.sampled_from(["0.16.0", "0.26.0", "0.33.0"]),
    stages=st.sampled_from([1, 1, 2]),
    policy=st.sampled_from(["fcfs", "priority"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_they_add_up_in_any_mixture(
    blocks: int,
    budget: int,
    places: int,
    rate: float,
    ahead: bool,
    version: str,
    stages: int,
    policy: str,
    seed: int,
) -> None:
    lengths = {
        "kind": "lognormal",
        "prompt": {"mean": 200, "sigma": 1.0, "max": 1000},
        "output": {"mean": 40, "sigma": 1.0, "max": 300},
    }
    scenario = make_scenario(
        rate=rate,
        requests=30,
        lengths=lengths,
        seed=seed,
        num_gpu_blocks_override=blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=min(places, budget),
        async_scheduling=ahead and stages == 1,
        version=version,
        pipeline_parallel_size=stages,
        scheduling_policy=policy,
    )
    observed = observe(scenario)
    assert_the_books_balance(observed)
    assert_they_agree_with_the_tables(observed)
    assert_gaps_are_those_of_the_metric(observed)
    assert_they_are_the_same(observed, observe(scenario, plain=True))
