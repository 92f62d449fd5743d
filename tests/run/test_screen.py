"""The screen, from a summary made by hand."""

from __future__ import annotations

from sim.report.screen import render

SUMMARY: dict[str, object] = {
    "completed": 1000,
    "failed": 2,
    "max_concurrency": 64,
    "request_rate": "inf",
    "duration": 101.234,
    "total_input_tokens": 1024000,
    "total_output_tokens": 128000,
    "request_throughput": 9.878,
    "request_goodput": 9.5,
    "output_throughput": 1264.449,
    "max_output_tokens_per_s": 1810.0,
    "max_concurrent_requests": 71,
    "total_token_throughput": 11380.02,
    **{
        f"{s}_{m}_ms": 12.345
        for m in ("ttft", "tpot", "itl", "e2el")
        for s in ("mean", "median", "p90", "p99")
    },
    "thin_percentiles": ["p99_ttft_ms"],
    "kv_usage_p50": 0.5,
    "kv_usage_p95": 0.75,
    "kv_usage_max": 1.0,
    "num_running_p50": 41.0,
    "num_running_p95": 60.0,
    "num_running_max": 64,
    "num_preemptions": 214,
    "recomputed_token_share": 0.061,
    "prefix_cache_hit_rate": None,
    "time_share_by_bound": {
        "compute": 0.1,
        "weights": 0.7,
        "kv": 0.2,
        "comm": 0.0,
        "latency": 0.0,
        "host": 0.0,
    },
    "slo": {
        "ttft_p99": {"limit_s": 1.0, "attainment": 0.95, "met": False},
        "tpot": {"limit_s": 0.04, "attainment": 0.99, "met": None},
    },
    "slo_attainment": 0.94,
    "num_aborted": 0,
    "num_rejected": 2,
    "num_in_flight": 0,
    "num_not_sent": 0,
    "rejections": {"longer than max_model_len (4096 tokens)": 2},
    "mirrors": "vLLM v0.16.0",
    "loop": "closed",
    "seed": 7,
    "warmup_s": 30.0,
    "calibration_id": "h100-sxm/x",
    "notes": ["something was lowered"],
}


def test_the_first_block_is_that_of_vllm_bench_serve_to_the_letter():
    """The sample in the description of `vllm bench serve`, with a limit on concurrency and no finite rate."""
    assert render(SUMMARY).splitlines()[:13] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     1000",
        "Failed requests:                         2",
        "Maximum request concurrency:             64",
        "Benchmark duration (s):                  101.23",
        "Total input tokens:                      1024000",
        "Total generated tokens:                  128000",
        "Request throughput (req/s):              9.88",
        "Request goodput (req/s):                 9.50",
        "Output token throughput (tok/s):         1264.45",
        "Peak output token throughput (tok/s):    1810.00",
        "Peak concurrent requests:                71.00",
        "Total token throughput (tok/s):          11380.02",
    ]


def test_thin_percentiles_are_starred_and_explained():
    text = render(SUMMARY)
    (row,) = [line for line in text.splitlines() if line.startswith("TTFT")]
    assert row.split() == ["TTFT", "12.35", "12.35", "12.35", "12.35*"]
    assert "* fewer than 10 samples above" in text
    assert "fewer than" not in render(SUMMARY | {"thin_percentiles": []})


def test_a_missed_target_stands_out_and_one_without_percentile_has_no_verdict():
    lines = render(SUMMARY).splitlines()
    assert "ttft_p99 <= 1 s:                         95.0% MISSED" in lines
    assert "tpot <= 40 ms:                           99.0%" in lines
    assert "All at once:                             94.0%" in lines


def test_ours_says_memory_preemption_and_what_bounds_the_steps():
    lines = render(SUMMARY).splitlines()
    assert "KV cache usage p50 / p95 / max:          50.0% / 75.0% / 100.0%" in lines
    assert "Recomputed tokens:                       6.1%" in lines
    assert "Prefix cache hit rate:                   -" in lines
    assert "Step time bound by:                      weights 70%, kv 20%, compute 10%" in lines


def test_the_footer_says_what_the_numbers_rest_on():
    last, error, note = render(SUMMARY).splitlines()[-3:]
    assert last == (
        "mirrors vLLM v0.16.0 | closed loop | seed 7 | warm-up 30 s removed | calibration h100-sxm/x"
    )
    assert error == "no measured run is like this one: the error is not known"
    assert note == "note: something was lowered"


def test_the_footer_gives_the_error_that_validation_found():
    line = "median (p90) error in validation, h100-sxm, dense, open loop, 65 rows: TTFT 2 % (4 %)"
    assert render({**SUMMARY, "error_band": {"line": line}}).splitlines()[-2] == line


def test_every_character_is_ascii_so_that_no_terminal_chokes():
    assert render(SUMMARY).isascii()
