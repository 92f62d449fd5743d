"""Result files of load generators, small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.evidence.validate.result_files import read_result_file
from sim.evidence.validate.sent_requests import sent_requests

#: Three requests of `vllm bench serve --save-detailed`, the second failed, the last listed was sent first.
DETAILED = {
    "date": "20260101-000000",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 3,
    "request_rate": 2.0,
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 4.0,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 300,
    "total_output_tokens": 5,
    "request_throughput": 0.5,
    "output_throughput": 1.25,
    "total_token_throughput": 76.25,
    "mean_ttft_ms": 150.0,
    "median_ttft_ms": 150.0,
    "p99_ttft_ms": 199.0,
    "input_lens": [100, 999, 200],
    "output_lens": [3, 0, 2],
    "start_times": [51.0, 50.7, 50.5],
    "queue_times": [0.2, 0.0, 0.0],
    "ttfts": [0.1, 0.0, 0.2],
    "itls": [[0.02, 0.04], [], [0.06]],
}


def write(folder: Path, data: object, name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_a_detailed_result_tells_requests_in_the_order_in_which_they_were_due(tmp_path: Path) -> None:
    """A request that waited 0.2 s for a slot of --max-concurrency was due 0.2 s before its start time."""
    (run,) = read_result_file(write(tmp_path, DETAILED))
    rows = run.rows
    assert rows is not None
    assert rows.arrival_s == pytest.approx([0.0, 0.3])
    assert rows.prompt_tokens is not None
    assert rows.prompt_tokens.tolist() == [200, 100]
    assert rows.e2e_s == pytest.approx([0.26, 0.16])
    assert (run.load, run.max_concurrency, run.num_requests) == ("trace", 8, 2)
    assert run.model == "meta-llama/Llama-3.1-8B"
    assert run.gpu is None


def test_a_detailed_result_gives_every_metric(tmp_path: Path) -> None:
    (run,) = read_result_file(write(tmp_path, DETAILED))
    assert run.measured["ttft_mean_ms"] == 150.0
    assert run.measured["tpot_mean_ms"] == pytest.approx((30 + 60) / 2)
    assert run.measured["itl_mean_ms"] == pytest.approx((20 + 40 + 60) / 3)
    assert run.measured["e2e_mean_ms"] == pytest.approx((260 + 160) / 2)
    assert run.measured["out_tput_tok_s"] == 1.25
    assert run.measured["failed"] == 1


def test_its_requests_become_the_traffic_of_a_simulation(tmp_path: Path) -> None:
    (run,) = read_result_file(write(tmp_path, DETAILED))
    sent = sent_requests(run)
    assert sent.arrival_s == pytest.approx([0.0, 0.3])
    assert sent.output_tokens.tolist() == [2, 3]
    assert sent.run.max_concurrency == 8


def test_without_the_arrays_the_means_are_known_and_the_rate_is_exact(tmp_path: Path) -> None:
    short = {key: value for key, value in DETAILED.items() if not isinstance(value, list)}
    (run,) = read_result_file(write(tmp_path, short))
    assert run.rows is None
    assert (run.load, run.rate_per_s) == ("poisson_exact", 2.0)
    sent = sent_requests(run)
    assert sent.prompt_tokens.tolist() == [150, 150]
    assert sent.arrival_s[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(("cap", "load"), [(None, "burst"), (4, "closed")])
def test_an_infinite_rate_is_a_burst_or_with_a_cap_a_closed_loop(
    tmp_path: Path, cap: int | None, load: str
) -> None:
    short = {key: value for key, value in DETAILED.items() if not isinstance(value, list)}
    (run,) = read_result_file(write(tmp_path, short | {"request_rate": "inf", "max_concurrency": cap}))
    assert run.load == load


def test_metadata_of_the_file_may_say_what_it_ran_on(tmp_path: Path) -> None:
    (run,) = read_result_file(
        write(tmp_path, DETAILED | {"gpu": "h100-sxm", "tp": "2", "max_num_seqs": "64"})
    )
    assert (run.gpu, run.tp, run.max_num_seqs) == ("h100-sxm", 2, 64)


def test_appended_results_are_runs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(DETAILED) + "\n" + json.dumps(DETAILED) + "\n")
    assert [run.run_id for run in read_result_file(path)] == ["run", "run:2"]


def guidellm_request(
    start_s: float, prompt: int, output: int, ttft_ms: float, latency_s: float
) -> dict[str, object]:
    return {
        "info": {"timings": {"request_start": start_s}},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "time_to_first_token_ms": ttft_ms,
        "request_latency": latency_s,
    }


def spread(mean: float) -> dict[str, object]:
    percentiles = {"p90": mean * 2, "p95": mean * 3, "p99": mean * 4}
    return {"successful": {"mean": mean, "median": mean, "count": 2, "percentiles": percentiles}}


GUIDELLM = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1"},
    "config": {"backend": {"model": "Qwen/Qwen3-14B"}},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": {"type_": "concurrent", "streams": 2}},
            "metrics": {
                "requests_per_second": spread(1.5),
                "request_latency": spread(1.2),
                "time_to_first_token_ms": spread(80.0),
                "time_per_output_token_ms": spread(30.0),
                "inter_token_latency_ms": spread(12.0),
                "output_tokens_per_second": spread(90.0),
                "prompt_token_count": spread(512.0),
                "output_token_count": spread(64.0),
            },
            "requests": {
                "successful": [
                    guidellm_request(7.5, 512, 60, 90.0, 1.3),
                    guidellm_request(7.0, 500, 68, 70.0, 1.1),
                ],
                "errored": [],
                "incomplete": [],
            },
        }
    ],
}


def test_a_guidellm_benchmark_is_read_with_its_own_meaning_of_itl(tmp_path: Path) -> None:
    """Its inter-token latency is a mean per request, TPOT here; its own "TPOT" is nothing here."""
    (run,) = read_result_file(write(tmp_path, GUIDELLM, "benchmarks.json"))
    rows = run.rows
    assert rows is not None
    assert run.measured["tpot_mean_ms"] == 12.0
    assert run.measured["tpot_p99_ms"] == 48.0
    assert "itl_mean_ms" not in run.measured
    assert run.measured["e2e_mean_ms"] == pytest.approx(1200.0)
    assert run.measured["ttft_p90_ms"] == 160.0
    assert run.measured["req_tput_rps"] == 1.5
    assert (run.load, run.max_concurrency, run.num_requests) == ("closed", 2, 2)
    assert run.model == "Qwen/Qwen3-14B"
    assert rows.prompt_tokens is not None
    assert rows.prompt_tokens.tolist() == [500, 512], "in the order of sending"


def test_a_guidellm_report_without_requests_still_gives_means(tmp_path: Path) -> None:
    bench = {**GUIDELLM["benchmarks"][0], "requests": {}}  # type: ignore[index]
    (run,) = read_result_file(write(tmp_path, {"benchmarks": [bench]}))
    assert run.rows is None
    sent = sent_requests(run)
    assert sent.prompt_tokens.tolist() == [512, 512]
    assert sent.run.max_concurrency == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"total": 3}', "neither a result of vllm bench serve"),
        ('{"completed": 0, "total_output_tokens": 0}', "no request of this run succeeded"),
    ],
)
def test_a_file_that_is_no_result_says_so_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"run\.json:1.*{reason}"):
        read_result_file(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "not UTF-8 text: byte 0"),
        (b'{"a":' * 5000, "nested too deeply"),
        (b'{"benchmarks": [1]}', "benchmarks: must be JSON objects"),
    ],
)
def test_a_file_that_is_no_result_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_result_file(path)
