"""Two tables that users of vLLM published, reproduced in shape under several seeds."""

from __future__ import annotations

from sim import RunOptions, compare

QUICK = {"options": RunOptions(workers=1, store=None)}


def test_a_watermark_ends_preemption_costs_first_tokens_and_halves_the_tail_of_itl():
    """vllm-project/vllm#44594: from 0 to 0.15, 1,065 preemptions become 168 and p99 ITL halves."""
    found = compare(
        "watermark",
        "watermark=0.15",
        overrides=["workload.num_requests=450"],
        replications=2,
        **QUICK,
    )
    none, kept = found.runs
    for without, with_it in zip(none, kept, strict=True):
        before, after = without.summary, with_it.summary
        assert 900 < before["num_preemptions"] < 1250
        assert after["num_preemptions"] < before["num_preemptions"] / 4
        assert after["median_ttft_ms"] > 1.2 * before["median_ttft_ms"]
        assert after["p99_itl_ms"] < before["p99_itl_ms"] / 2
        assert abs(after["output_throughput"] / before["output_throughput"] - 1) < 0.06


def test_who_has_least_to_lose_is_the_better_victim_and_who_holds_most_blocks_the_worse():
    """vllm-project/vllm#54644: least-computed before last-admitted before most-computed, online, 7B."""
    found = compare("victims", "fcfs_tail", "least_computed", "most_blocks_freed", seeds=[0, 1, 2], **QUICK)
    for last, least, most in zip(*found.runs, strict=True):
        shares = [run.summary["recomputed_token_share"] for run in (least, last, most)]
        assert shares == sorted(shares)
        assert shares[0] < 0.9 * shares[1]
    tax = found.difference("recomputed_token_share", "fcfs_tail")["mean"]
    assert 5.0 < tax < 25.0
