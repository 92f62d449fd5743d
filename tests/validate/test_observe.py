"""What a client sees of a simulated run, worked out by hand for three requests."""

from __future__ import annotations

import numpy as np
import pytest

from sim.evidence.validate.scoring import observe

#: Two requests overlap, the third comes alone; the fourth never finished.
REQUESTS = {
    "arrival_s": np.array([0.0, 1.0, 10.0, 11.0]),
    "first_token_s": np.array([0.5, 1.5, 10.1, np.nan]),
    "last_token_s": np.array([2.5, 2.5, 11.1, np.nan]),
    "ttft_s": np.array([0.5, 0.5, 0.1, np.nan]),
    "tpot_s": np.array([0.1, 0.1, np.nan, np.nan]),
    "e2e_s": np.array([2.5, 1.5, 1.1, np.nan]),
    "prompt_tokens": np.array([100, 200, 300, 400]),
    "output_tokens": np.array([21, 11, 1, 0]),
    "status": np.array(["finished", "finished", "finished", "rejected"]),
}
SUMMARY = {"mean_itl_ms": 99.0, "median_itl_ms": 100.0, "p99_itl_ms": 120.0, "p90_itl_ms": None}


def test_inside_the_engine_latencies_are_those_of_its_clock() -> None:
    seen, latencies = observe(REQUESTS, SUMMARY, client="go")
    assert seen["ttft_mean_ms"] == pytest.approx((500 + 500 + 100) / 3)
    assert seen["ttft_p50_ms"] == pytest.approx(500)
    assert seen["e2e_mean_ms"] == pytest.approx((2500 + 1500 + 1100) / 3)
    assert seen["tpot_mean_ms"] == pytest.approx((2000 / 20 + 1000 / 10) / 2), "one token has no TPOT"
    assert len(latencies) == 3


def test_throughput_runs_from_the_first_send_to_the_last_completion() -> None:
    seen, _ = observe(REQUESTS, SUMMARY, client="go")
    assert seen["req_tput_rps"] == pytest.approx(3 / 11.1)
    assert seen["in_tput_tok_s"] == pytest.approx(600 / 11.1)
    assert seen["out_tput_tok_s"] == pytest.approx(33 / 11.1)
    assert seen["total_tput_tok_s"] == pytest.approx(633 / 11.1)
    assert (seen["completed"], seen["failed"]) == (3, 1)


def test_a_python_client_adds_to_ttft_and_e2e_with_what_it_has_in_flight() -> None:
    """4 ms + 0.25 ms a request in flight: one at the first token of the first request, two, then one."""
    plain, _ = observe(REQUESTS, SUMMARY, client="go")
    python, _ = observe(REQUESTS, SUMMARY, client="python")
    added_ms = (4.25 + 4.5 + 4.25) / 3
    assert python["ttft_mean_ms"] - plain["ttft_mean_ms"] == pytest.approx(added_ms)
    assert python["e2e_mean_ms"] - plain["e2e_mean_ms"] == pytest.approx(added_ms)
    assert python["tpot_mean_ms"] == plain["tpot_mean_ms"]


def test_requests_of_the_warm_up_do_not_count() -> None:
    seen, _ = observe(REQUESTS, SUMMARY, client="go", warmup_s=1.0)
    assert seen["completed"] == 2
    assert seen["req_tput_rps"] == pytest.approx(2 / 10.1)


def test_pooled_gaps_come_from_the_summary_and_what_it_lacks_is_left_out() -> None:
    seen, _ = observe(REQUESTS, SUMMARY, client=None)
    assert seen["itl_mean_ms"] == 99.0
    assert seen["itl_p50_ms"] == 100.0
    assert "itl_p90_ms" not in seen


def test_a_run_in_which_nothing_finished_has_no_latencies() -> None:
    seen, latencies = observe({name: values[3:] for name, values in REQUESTS.items()}, {}, client="python")
    assert seen == {"completed": 0.0, "failed": 1.0}
    assert latencies.empty
