"""All features at once, under both releases that are mirrored: laws hold, equal seeds give equal runs."""

from __future__ import annotations

import pytest

from sim.simulation import simulate
from tests.features.helpers import make_scenario

LENGTHS = {"kind": "uniform", "prompt_tokens": (20, 400), "output_tokens": (5, 120)}
CHAT = {
    "kind": "poisson",
    "rate_per_s": 6,
    "num_requests": 25,
    "lengths": LENGTHS,
    "sessions": {
        "turns": {"kind": "geometric", "mean": 3},
        "think_time_s": {"kind": "exponential", "mean_s": 1},
    },
    "prefixes": {"groups": 3, "prefix_tokens": 64},
    "lora": {"num_adapters": 6, "popularity": "zipf", "share": 0.7},
    "timeouts": {"total_s": {"kind": "exponential", "mean_s": 6}},
}
JOBS = {
    "kind": "closed_loop",
    "num_requests": 40,
    "max_concurrency": 12,
    "lengths": LENGTHS,
    "grammar": {"share": 0.5, "num_grammars": 8},
    "timeouts": {"first_token_s": {"kind": "uniform", "range_s": (0.5, 20)}},
}
MIX = {
    "kind": "mix",
    "workloads": {"chat": CHAT, "jobs": JOBS},
    "classes": {"chat": {"priority": 0, "slo": {"ttft_p99": "1s"}}, "jobs": {"priority": 3}},
}
DRAFTING = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.6},
}


def everything(version, drafting, policy, cluster):
    engine = {
        "version": version,
        "max_model_len": 2000,
        "num_gpu_blocks_override": 260,
        "max_num_seqs": 24,
        "scheduling_policy": policy,
        "speculative_config": DRAFTING[drafting],
        "lora": {"max_loras": 2},
        "grammar": {"compile_s": {"kind": "lognormal", "mean_s": 0.4, "sigma": 1}, "workers": 2},
    }
    return make_scenario(MIX, engine=engine, cluster=cluster)


def ended(summary):
    return sum(summary[f"num_{how}"] for how in ("finished", "aborted", "rejected", "in_flight", "not_sent"))


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_all_features_together_keep_the_laws(version, drafting, policy):
    cluster = {"replicas": 2, "router": {"kind": "session"}}
    scenario = everything(version, drafting, policy, cluster)
    result = simulate(scenario, check=True)
    assert result.stuck is None
    assert ended(result.summary) == result.summary["num_requests"]
    assert result.summary["num_in_flight"] == 0
    assert simulate(scenario).requests.equals(result.requests)
    assert simulate(scenario, plain=True).requests.equals(result.requests)


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("drafting", ["none", "eagle"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_external_cache_joins_them(version, drafting, asynchronous):
    """Loads that wait with their blocks can stop a real engine for ever; then the run says so and ends."""
    cluster = {
        "replicas": 2,
        "external_cache": {
            "hits": {"kind": "lru", "capacity_tokens": 50_000},
            "bandwidth_gb_per_s": 1,
            "asynchronous": asynchronous,
        },
    }
    scenario = everything(version, drafting, "fcfs", cluster)
    result = simulate(scenario, check=True)
    assert ended(result.summary) == result.summary["num_requests"]
    assert result.stuck is not None or result.summary["num_in_flight"] == 0
    assert result.summary["external_prefix_cache_hits"] > 0
    assert simulate(scenario).requests.equals(result.requests)
