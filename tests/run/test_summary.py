"""The summary: the keys of `vllm bench serve`, counts that add up, the warm-up left out."""

from __future__ import annotations

import math

import pytest

from sim.exports import openmetrics
from sim.report.screen import render
from sim.scenario import scenario_from_data
from sim.simulation import simulate

VLLM_KEYS = [
    *("endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
    *(f"{s}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el") for s in ("mean", "median", "std", "p99")),
]


def simulated(workload: dict[str, object] | None = None, **changes: object):
    data = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm",
        "engine": {"max_model_len": 2048},
        "workload": {
            "kind": "poisson",
            "rate_per_s": 10.0,
            "num_requests": 100,
            "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 5},
        }
        | (workload or {}),
    }
    return simulate(scenario_from_data(data | changes))


def test_it_has_the_keys_of_vllm_bench_serve():
    summary = simulated().summary
    assert set(VLLM_KEYS) <= set(summary)
    assert "date" not in summary


def test_throughput_is_work_over_the_time_from_first_send_to_last_token():
    result = simulated()
    summary, requests = result.summary, result.requests
    duration_s = requests["last_token_s"].max() - requests["arrival_s"].min()
    assert summary["duration"] == pytest.approx(duration_s, abs=1e-8)
    assert summary["request_throughput"] == pytest.approx(100 / duration_s)
    assert summary["total_token_throughput"] == pytest.approx(100 * 105 / duration_s)


def test_requests_running_are_told_over_time():
    """Seven clients that never pause keep seven requests running, and an idle engine runs none."""
    long = {"lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 200}}
    busy = simulated(
        {"kind": "closed_loop", "max_concurrency": 7, "rate_per_s": None, "num_requests": 210} | long
    )
    assert busy.summary["num_running_p50"] == busy.summary["num_running_max"] == 7
    result = simulated(long)
    steps, summary = result.steps, result.summary
    assert summary["num_running_max"] == steps["num_running"].max()
    by_number_s = steps.groupby("num_running")["step_time_s"].sum()
    idle_s = summary["clock_s"] - by_number_s.sum()
    share = (by_number_s.cumsum() + idle_s) / summary["clock_s"]
    assert share[summary["num_running_p95"]] >= 0.95 > share[summary["num_running_p95"] - 1]


def test_latencies_are_those_of_the_table():
    result = simulated()
    ttft_s = result.requests["first_token_s"] - result.requests["arrival_s"]
    assert result.summary["mean_ttft_ms"] == pytest.approx(1000 * ttft_s.mean(), abs=1e-5)
    assert result.summary["p99_ttft_ms"] == pytest.approx(1000 * ttft_s.quantile(0.99), abs=1e-5)
    assert result.summary["std_ttft_ms"] == pytest.approx(1000 * ttft_s.std(ddof=0), abs=1e-5)


def test_ends_add_up_to_all_requests():
    summary = simulated(horizon_s=3.0).summary
    ends = [summary[f"num_{end}"] for end in ("finished", "aborted", "rejected", "in_flight", "not_sent")]
    assert sum(ends) == summary["num_requests"] == 100
    assert summary["num_not_sent"] > 0


def test_requests_of_the_warm_up_are_left_out():
    whole, late = simulated(), simulated(warmup_s=4.0)
    arrived_late = int((whole.requests["arrival_s"] >= 4.0).sum())
    assert late.summary["completed"] == arrived_late
    assert late.summary["num_finished"] == 100
    assert len(late.requests) == 100


def test_nothing_is_missed_where_the_warm_up_left_nothing_to_judge():
    summary = simulated(warmup_s=1e6, slo={"ttft_p50": "20ms", "tpot": "1s"}).summary
    assert [target["met"] for target in summary["slo"].values()] == [None, None]
    assert summary["slo_attainment"] is None
    assert "the warm-up of 1e+06 s left no request to report on: none arrived after it" in summary["notes"]
    assert "ttft_p50 <= 20 ms:                       no data" in render(summary).splitlines()
    assert not any("warm-up" in note for note in simulated(warmup_s=4.0).notes)


def test_goodput_counts_requests_that_meet_all_targets():
    result = simulated(slo={"ttft_p50": "20ms", "tpot_p99": "1s"})
    requests, summary = result.requests, result.summary
    ttft_s = requests["first_token_s"] - requests["arrival_s"]
    good = int((ttft_s <= 0.02).sum())
    assert summary["request_goodput"] == pytest.approx(good / summary["duration"])
    assert summary["slo"]["ttft_p50"]["attainment"] == good / 100
    assert summary["slo"]["ttft_p50"]["met"] == (good >= 50)
    assert summary["slo_attainment"] == good / 100


def test_without_an_slo_there_is_no_goodput():
    assert simulated().summary["request_goodput"] is None


def test_time_shares_add_up_to_one():
    assert math.fsum(simulated().summary["time_share_by_bound"].values()) == pytest.approx(1.0)


def test_a_run_in_which_nobody_finishes_has_no_latencies():
    summary = simulated(engine={"max_model_len": 50}).summary
    assert summary["num_rejected"] == summary["failed"] == 100
    assert summary["mean_ttft_ms"] is None
    assert summary["duration"] == 0.0
    assert summary["request_throughput"] == 0.0


def test_thin_percentiles_are_named():
    """100 requests, so one lies above p99 and five above p95; 400 gaps, so four lie above p99."""
    assert simulated().summary["thin_percentiles"] == [
        "p95_ttft_ms",
        "p99_ttft_ms",
        "p95_tpot_ms",
        "p99_tpot_ms",
        "p99_itl_ms",
        "p95_e2el_ms",
        "p99_e2el_ms",
    ]


def test_repeated_prompts_hit_the_prefix_cache():
    """Ten prompts of 96 tokens, repeated: each later one finds its leading 5 blocks; the sixth has its last
    token."""
    result = simulated(
        {"distinct_prompts": 10, "lengths": {"kind": "fixed", "prompt_tokens": 96, "output_tokens": 2}}
    )
    assert (result.requests["cached_tokens"].iloc[20:] == 80).all()
    assert 0.6 < result.summary["prefix_cache_hit_rate"] < 80 / 96


def test_what_preempted_requests_find_again_is_no_hit_of_the_prefix_cache():
    """Engines count lookups of requests that were preempted apart: distinct prompts have a hit rate of 0."""
    starved = {"max_model_len": 2048, "num_gpu_blocks_override": 200}
    lengths = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 200}
    result = simulated({"lengths": lengths, "rate_per_s": 50.0}, engine=starved)
    summary = result.summary
    assert summary["num_preemptions"] > 0
    assert summary["preemption_rehit_blocks"] > 0
    assert summary["prefix_cache_hits"] == 0
    exported = [
        line for line in openmetrics.render(result).splitlines() if "prefix_cache_hits_total{" in line
    ]
    assert [line.rpartition(" ")[2] for line in exported] == ["0"]
