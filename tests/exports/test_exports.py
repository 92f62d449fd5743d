"""What other tools read of a run says the same as its summary and tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sim.errors import InputError
from sim.evidence.validate.result_files import read_result_file
from sim.exports import check_formats, write_exports
from sim.scenario import load_scenario
from sim.simulation import RunResult, simulate
from tests.cli.helpers import dryserve, write_scenario

SETTINGS = ["workload.num_requests=150", "engine.num_gpu_blocks_override=700", "cluster.replicas=2"]


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulate(load_scenario("kv-starved", [*SETTINGS, "warmup_s=2"]))


@pytest.fixture(scope="module")
def bench(result, tmp_path_factory) -> dict:
    (path,) = write_exports(result, tmp_path_factory.mktemp("run"), ["vllm"])
    assert path.name == "vllm-bench.json"
    text = path.read_text()
    assert text.count("\n") == 1, "one object, one line"
    return json.loads(text)


class TestVllmBench:
    def test_statistics_can_be_computed_from_the_lists(self, bench):
        ttft = np.array(bench["ttfts"]) * 1000
        gaps = np.concatenate(bench["itls"]) * 1000
        e2e = ttft + [1000 * sum(each) for each in bench["itls"]]
        tpot = [
            (end - first) / (n - 1)
            for end, first, n in zip(e2e, ttft, bench["output_lens"], strict=True)
            if n > 1
        ]
        for name, values in (("ttft", ttft), ("itl", gaps), ("tpot", tpot), ("e2el", e2e)):
            assert bench[f"mean_{name}_ms"] == pytest.approx(np.mean(values), abs=1e-5)
            assert bench[f"median_{name}_ms"] == pytest.approx(np.median(values), abs=1e-5)
            assert bench[f"std_{name}_ms"] == pytest.approx(np.std(values), abs=1e-5)
            assert bench[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99), abs=1e-4)
        assert np.array(bench["latencies"]) * 1000 == pytest.approx(e2e, abs=1e-4)

    def test_every_request_has_its_place_in_every_list(self, bench, result):
        measured = result.requests[result.requests["arrival_s"] >= 2]
        lists = [name for name, value in bench.items() if isinstance(value, list)]
        assert set(lists) >= {
            "input_lens",
            "output_lens",
            "ttfts",
            "itls",
            "generated_texts",
            "errors",
            "start_times",
        }
        assert {len(bench[name]) for name in lists} == {len(measured)} == {bench["completed"]}
        assert bench["input_lens"] == measured["prompt_tokens"].tolist()
        assert sum(bench["output_lens"]) == bench["total_output_tokens"]
        assert [len(gaps) + 1 for gaps in bench["itls"]] == bench["output_lens"]
        assert bench["start_times"] == measured["arrival_s"].tolist()

    def test_keys_stand_in_the_order_of_vllm(self, bench):
        keys = list(bench)
        assert keys[:6] == ["date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id"]
        assert (
            keys.index("num_prompts")
            < keys.index("duration")
            < keys.index("mean_ttft_ms")
            < keys.index("ttfts")
        )

    def test_our_own_reader_of_such_files_finds_the_same_run(self, result, bench, tmp_path):
        (path,) = write_exports(result, tmp_path, ["vllm"])
        (run,) = read_result_file(path)
        rows = run.rows
        assert rows is not None
        assert (run.gpu, run.engine_version, run.tp) == ("h100-sxm", "0.16.0", 1)
        assert run.num_requests == result.summary["completed"]
        assert run.measured["ttft_p99_ms"] == result.summary["p99_ttft_ms"]
        assert rows.ttft_s.tolist() == bench["ttfts"]

    def test_a_failed_request_keeps_its_slot_with_zeros(self, tmp_path):
        changes = ["horizon_s=6", "workload.rate_per_s=20", "engine.num_gpu_blocks_override=100"]
        cut = simulate(load_scenario("kv-starved", [*SETTINGS, *changes]))
        (path,) = write_exports(cut, tmp_path, ["vllm"])
        data = json.loads(path.read_text())
        failed = [i for i, error in enumerate(data["errors"]) if error]
        assert len(failed) == data["failed"] > 0
        assert len(data["errors"]) == data["completed"] + data["failed"], "those in flight are left out"
        for i in failed:
            slot = [data[name][i] for name in ("errors", "output_lens", "ttfts", "itls")]
            assert slot == ["rejected", 0, 0, []]


def families(result: RunResult, folder: Path) -> dict:
    (path,) = write_exports(result, folder, ["openmetrics"])
    return {family.name: family for family in text_string_to_metric_families(path.read_text())}


def values(family, suffix: str, engine: int) -> list:
    return [
        s for s in family.samples if s.name == f"{family.name}{suffix}" and s.labels["engine"] == str(engine)
    ]


class TestOpenMetrics:
    def test_a_strict_parser_accepts_it_and_finds_vllms_names(self, result, tmp_path):
        found = families(result, tmp_path)
        kinds = {name: family.type for name, family in found.items()}
        assert kinds["vllm:num_requests_running"] == "gauge"
        assert kinds["vllm:generation_tokens"] == "counter"
        assert kinds["vllm:iteration_tokens_total"] == "histogram"
        assert len(kinds) == 23
        assert {s.labels["engine"] for family in found.values() for s in family.samples} == {"0", "1"}

    @pytest.mark.parametrize(
        ("name", "start", "end"),
        [
            ("time_to_first_token", "arrival_s", "first_token_s"),
            ("e2e_request_latency", "arrival_s", "last_token_s"),
            ("request_queue_time", "arrival_s", "first_scheduled_s"),
            ("request_prefill_time", "first_scheduled_s", "first_token_s"),
            ("request_decode_time", "first_token_s", "last_token_s"),
        ],
    )
    def test_buckets_sum_and_count_are_those_of_the_table(self, result, tmp_path, name, start, end):
        family = families(result, tmp_path)[f"vllm:{name}_seconds"]
        for engine in (0, 1):
            rows = result.requests[result.requests["replica"].eq(engine)]
            span_s = rows[end] - rows[start]
            for bucket in values(family, "_bucket", engine):
                assert bucket.value == (span_s <= float(bucket.labels["le"])).sum()
            assert values(family, "_sum", engine)[0].value == pytest.approx(span_s.sum(), abs=1e-6)
            assert values(family, "_count", engine)[0].value == len(rows)

    def test_counters_add_up_to_the_tables(self, result, tmp_path):
        found, requests = families(result, tmp_path), result.requests
        totals = {
            name: sum(s.value for s in found[f"vllm:{name}"].samples)
            for name in ("prompt_tokens", "generation_tokens", "num_preemptions", "request_success")
        }
        assert totals == {
            "prompt_tokens": requests["prompt_tokens"].sum(),
            "generation_tokens": requests["output_tokens"].sum(),
            "num_preemptions": requests["num_preemptions"].sum(),
            "request_success": len(requests),
        }
        computed = ["decode_tokens", "prefill_tokens", "recompute_tokens"]
        family = found["vllm:iteration_tokens_total"]
        assert (
            sum(values(family, "_sum", engine)[0].value for engine in (0, 1))
            == result.steps[computed].sum().sum()
        )

    def test_there_is_a_gap_for_every_token_but_the_first(self, result, tmp_path):
        family = families(result, tmp_path)["vllm:inter_token_latency_seconds"]
        gaps = sum(values(family, "_count", engine)[0].value for engine in (0, 1))
        assert gaps == (result.requests["output_tokens"] - 1).sum()

    def test_the_state_at_a_horizon_is_that_of_the_engines(self, tmp_path):
        cut = simulate(load_scenario("kv-starved", [*SETTINGS, "horizon_s=6"]))
        found = families(cut, tmp_path)
        flying = sum(
            s.value for name in ("running", "waiting") for s in found[f"vllm:num_requests_{name}"].samples
        )
        assert flying == cut.summary["num_in_flight"] > 0
        assert all(0 < s.value <= 1 for s in found["vllm:kv_cache_usage_perc"].samples)


def test_parquet_holds_the_tables(result, tmp_path):
    files = write_exports(result, tmp_path, ["parquet"])
    assert [path.name for path in files] == ["requests.parquet", "steps.parquet", "preemptions.parquet"]
    for path, table in zip(files, (result.requests, result.steps, result.preemption_times), strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_dtype=False)


def test_the_same_run_gives_the_same_bytes(result, tmp_path):
    again = simulate(load_scenario("kv-starved", [*SETTINGS, "warmup_s=2"]))
    written = []
    for name, run in (("a", result), ("b", again)):
        (tmp_path / name).mkdir()
        files = write_exports(run, tmp_path / name, ["vllm", "parquet", "openmetrics"])
        written.append([path.read_bytes() for path in files])
    assert written[0] == written[1]


def test_every_wrong_format_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sim.exports.find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check_formats(["vlm", "parquet", "csv"])
    assert [str(fault) for fault in caught.value.faults] == [
        "--export: vlm: no such format; there are vllm, parquet, openmetrics; did you mean 'vllm'?",
        "--export: parquet: needs pyarrow: pip install 'dryserve[parquet]'",
        "--export: csv: no such format; there are vllm, parquet, openmetrics",
    ]


def test_the_command_writes_them_into_the_run_folder(tmp_path):
    write_scenario(tmp_path)
    done = dryserve("run", "small.yaml", "--no-report", "--export", "vllm, openmetrics", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"vllm-bench.json", "metrics.txt"} < {path.name for path in folder.iterdir()}
    wrong = dryserve("run", "small.yaml", "--export", "csv", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: --export: csv: no such format; there are vllm, parquet, openmetrics\n"
