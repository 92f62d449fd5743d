"""Runs in which one thing is in short supply, and whether the explanation says which."""

from __future__ import annotations

from typing import Any

import pytest

from sim.questions.explain import words
from sim.questions.explain.candidates import candidates, facts_of
from sim.questions.explain.cause import Cause
from sim.questions.explain.explain import SUMMARY_KEYS
from sim.questions.explain.observe import Observed
from tests.explain.helpers import explained, make_scenario

LONG_ANSWERS = {"kind": "fixed", "prompt_tokens": 300, "output_tokens": 200}


def in_words(observed: Observed, found: Cause) -> str:
    return " ".join(words.cause_in_words(found, observed.result.setup.engine))


def proposals(observed: Observed, found: Cause) -> str:
    return "; ".join(candidate.label for candidate in candidates(facts_of(observed, found)))


def test_where_the_cache_is_full_it_is_kv_blocks():
    observed, found = explained(
        make_scenario(rate=20, lengths=LONG_ANSWERS, num_gpu_blocks_override=200, reserve_full_prompt=True)
    )
    assert found.top == "kv_blocks"
    assert found.slow.parts["kv_blocks"] > 0.9 * found.slow.mean_s
    assert in_words(observed, found).startswith("KV blocks: ")
    assert found.behind_share > 0.5
    assert "gpu_memory_utilization 0.9 → 0.95" in proposals(observed, found)
    assert "kv_cache_dtype auto → fp8" in proposals(observed, found)
    assert "max_num_batched_tokens" not in proposals(observed, found)


def test_where_few_may_run_it_is_sequence_slots():
    observed, found = explained(make_scenario(rate=20, lengths=LONG_ANSWERS, max_num_seqs=4))
    assert found.top == "seq_slots"
    assert "max_num_seqs = 4 requests were running" in in_words(observed, found)
    assert "max_num_seqs 4 → 8" in proposals(observed, found)
    assert "kv_cache_dtype" not in proposals(observed, found)


def test_where_prompts_outrun_the_budget_it_is_the_token_budget():
    lengths = {"kind": "fixed", "prompt_tokens": 4000, "output_tokens": 4}
    observed, found = explained(make_scenario(rate=30, lengths=lengths, max_num_batched_tokens=2048))
    assert found.top == "token_budget"
    assert "2,048 tokens of a step (max_num_batched_tokens)" in in_words(observed, found)
    assert "max_num_batched_tokens 2,048 → 4,096" in proposals(observed, found)


def test_where_prefills_share_the_steps_the_gaps_are_theirs():
    lengths = {"kind": "fixed", "prompt_tokens": 3000, "output_tokens": 100}
    observed, found = explained(make_scenario(rate=3, lengths=lengths), "itl")
    assert found.top == "by_prefills"
    assert found.slow_chunk_tokens[0] > 1000 > found.slow_chunk_tokens[1]
    assert "tokens were prefilled or recomputed" in in_words(observed, found)
    assert "long_prefill_token_threshold 0 → 512" in proposals(observed, found)


def test_where_preemption_makes_the_gaps_it_is_preempted():
    observed, found = explained(
        make_scenario(rate=20, lengths=LONG_ANSWERS, num_gpu_blocks_override=200), "itl", 99.9
    )
    assert found.preemption.count > 20
    assert found.top == "preempted"
    assert "waited to be admitted again" in in_words(observed, found)
    assert "victim: least computed" in proposals(observed, found)


def test_where_nobody_else_is_there_it_is_the_own_prompt():
    lengths = {"kind": "uniform", "prompt_tokens": (100, 8000), "output_tokens": (2, 2)}
    observed, found = explained(make_scenario(rate=0.2, requests=40, lengths=lengths))
    assert found.top == "prefill"
    assert "Their prompts have" in in_words(observed, found)


def test_where_answers_are_long_e2e_is_decoding():
    lengths = {"kind": "uniform", "prompt_tokens": (100, 100), "output_tokens": (10, 1000)}
    observed, found = explained(make_scenario(rate=0.5, requests=40, lengths=lengths), "e2e")
    assert found.top == "decode"
    assert "their own decoding" in in_words(observed, found)
    assert "Their answers have" in in_words(observed, found)
    assert "max_num_batched_tokens" not in proposals(observed, found)


def test_where_all_are_alike_there_is_no_tail_to_explain():
    observed, found = explained(make_scenario(rate=0.01, requests=30))
    assert not found.stands_out
    assert "there is no tail to explain" in in_words(observed, found)


def test_where_adapters_wait_for_a_slot_they_are_held_back():
    observed, found = explained(
        make_scenario(
            rate=20,
            lengths=LONG_ANSWERS,
            lora={"max_loras": 1, "max_lora_rank": 16},
            workload={"lora": {"num_adapters": 4}},
        )
    )
    assert found.top == "held_back"
    assert "max_loras 1 → 2" in proposals(observed, found)


def test_thrashing_is_called_so():
    _, found = explained(make_scenario(rate=60, lengths=LONG_ANSWERS, num_gpu_blocks_override=80))
    verdict = found.preemption
    lines = " ".join(words.preemptions_in_words(found, []))
    assert verdict.worst is not None
    assert verdict.worst[1] == max(verdict.histogram)
    assert verdict.is_thrashing == ("thrashing" in lines)
    assert sum(n * count for count, n in verdict.histogram.items()) == verdict.count
    assert f"{verdict.count:,} preemptions" in lines
    assert verdict.cost_s[99.0] > 0


def test_without_preemption_there_is_nothing_to_say_of_it():
    _, found = explained(make_scenario(rate=1, requests=20))
    assert words.preemptions_in_words(found, []) == ["No preemption."]


NOTHING: dict[str, dict[str, Any]] = {
    "nobody finished": {"horizon_s": 0.01},
    "everybody hung up": {"workload": {"timeouts": {"total_s": 0.02}}},
}


@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.parametrize("metric", ["ttft", "e2e", "itl"])
def test_where_nothing_finished_it_says_so(kind: str, metric: str):
    observed, found = explained(make_scenario(rate=5, requests=10, **NOTHING[kind]), metric)
    assert found.value_s is None
    assert found.window is None
    assert in_words(observed, found).startswith("Nothing to explain")


@pytest.mark.parametrize("metric", ["ttft", "e2e", "itl"])
def test_a_single_request_is_explained_like_many(metric: str):
    observed, found = explained(make_scenario(requests=1), metric)
    assert found.is_thin
    assert found.value_s == pytest.approx(found.slow.mean_s, rel=0.01)
    assert found.slow.size == 1
    assert in_words(observed, found)


def test_answers_of_one_token_have_no_gaps():
    observed, found = explained(
        make_scenario(requests=5, lengths={"kind": "fixed", "prompt_tokens": 50, "output_tokens": 1}), "itl"
    )
    assert "no gap between tokens" in in_words(observed, found)


def test_the_value_is_the_percentile_of_the_summary():
    scenario = make_scenario(rate=20, lengths=LONG_ANSWERS, num_gpu_blocks_override=200)
    for metric in ("ttft", "itl", "e2e"):
        for percent in (90, 99):
            observed, found = explained(scenario, metric, percent)
            known = observed.result.summary[f"p{percent}_{SUMMARY_KEYS[metric]}_ms"]
            assert found.value_s is not None
            assert 1000 * found.value_s == pytest.approx(known, rel=1e-9)
            assert found.slow.mean_s >= found.value_s * (1 - 1e-9)


def test_the_bands_hold_every_request_once():
    _, found = explained(make_scenario(rate=20, lengths=LONG_ANSWERS, num_gpu_blocks_override=200))
    assert [band.label for band in found.bands] == ["p0–p50", "p50–p90", "p90–p99", "p99–p100"]
    assert [band.size for band in found.bands] == [60, 48, 11, 1]
    assert found.bands[-1] == found.slow
    for band in (*found.bands, found.middle):
        assert sum(band.parts.values()) == pytest.approx(band.mean_s)


def test_the_worst_stretch_is_where_the_burst_came():
    workload = {"rate_curve": ((0, 1), (60, 8), (75, 1)), "num_requests": None, "duration_s": 150}
    observed, found = explained(
        make_scenario(rate=4, lengths=LONG_ANSWERS, max_num_seqs=16, workload=workload)
    )
    window = found.window
    assert window is not None
    assert window.line_at_start > 100
    assert 60 <= window.line_since_s <= 65 < window.start_s <= 90
    assert window.rate_since_per_s > 3 * window.mean_rate_per_s
    assert "waited already: the line had stood since 6" in " ".join(
        words.worst_minute_in_words(found, window, 1, observed.result.setup.engine)
    )
    assert window.slow == window.all_slow == found.slow.size


def test_the_worst_stretch_does_not_reach_beyond_the_last_arrival():
    """Under overload the slowest come last; what came in the stretch is then the rate of the whole run."""
    observed, found = explained(make_scenario(rate=40, requests=400, lengths=LONG_ANSWERS, max_num_seqs=16))
    window, arrivals = found.window, observed.result.requests["arrival_s"]
    assert window is not None
    assert window.end_s == pytest.approx(arrivals.max())
    assert window.slow == window.all_slow
    came = int(arrivals.between(window.start_s, window.end_s).sum())
    assert window.rate_per_s == pytest.approx(came / (window.end_s - window.start_s))
    assert window.rate_per_s == pytest.approx(window.mean_rate_per_s, rel=0.25)
