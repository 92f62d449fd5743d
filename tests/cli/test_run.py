"""`dryserve run`: one screen, one folder, and it says what it mirrors."""

from __future__ import annotations

import json
import subprocess

import pandas as pd
import pytest

from tests.cli.helpers import DRYSERVE, dryserve, write_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_scenario(folder)
    return dryserve("run", "small.yaml", "--check", cwd=folder), folder


def test_it_prints_the_block_of_vllm_bench_serve(run):
    lines = run[0].stdout.splitlines()
    assert run[0].returncode == 0, run[0].stderr
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     40"
    labels = [line[:40].rstrip() for line in lines[2:12]]
    assert labels == [
        "Failed requests:",
        "Request rate configured (RPS):",
        "Benchmark duration (s):",
        "Total input tokens:",
        "Total generated tokens:",
        "Request throughput (req/s):",
        "Request goodput (req/s):",
        "Output token throughput (tok/s):",
        "Peak output token throughput (tok/s):",
        "Peak concurrent requests:",
    ]
    assert all(len(line) == 50 for line in lines if set(line[:3]) <= {"=", "-"})


def test_it_is_one_screen_with_a_footer(run):
    text = run[0].stdout
    assert len(text.splitlines()) <= 40
    assert "mirrors vLLM v0.16.0 | open loop | seed 0" in text
    assert "calibration h100" in text


def test_it_says_on_stderr_where_the_results_are_and_that_laws_hold(run):
    assert "all laws hold; results in runs/small-" in run[0].stderr.replace("\n", " ")


def test_the_folder_holds_tables_with_the_promised_columns_report_and_figures(run):
    (folder,) = (run[1] / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "scenario.resolved.yaml",
        "summary.json",
        "requests.csv",
        "steps.csv",
        "preemptions.csv",
        "report.md",
        "report.html",
        "figures",
    }
    assert list(pd.read_csv(folder / "requests.csv").columns) == [
        "request_id",
        "class",
        "session",
        "replica",
        "arrival_s",
        "first_scheduled_s",
        "first_token_s",
        "last_token_s",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "num_preemptions",
        "recomputed_tokens",
        "stalled_s",
        "status",
    ]
    assert list(pd.read_csv(folder / "steps.csv").columns) == [
        "end_s",
        "replica",
        "step_time_s",
        "decode_tokens",
        "prefill_tokens",
        "recompute_tokens",
        "num_running",
        "num_waiting",
        "kv_used_blocks",
        "kv_cached_blocks",
        "num_preemptions",
        "bound",
    ]


def test_report_draws_the_same_page_again(run):
    (folder,) = (run[1] / "runs").iterdir()
    page = (folder / "report.md").read_bytes()
    (folder / "report.md").unlink()
    again = dryserve("report", folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "report.md").read_bytes() == page


def test_json_prints_the_summary_alone(tmp_path):
    done = dryserve("run", write_scenario(tmp_path), "--json", "--no-report", "--out", tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    assert json.loads(done.stdout) == json.loads((folder / "summary.json").read_text())
    assert not (folder / "report.md").exists()


def test_set_changes_a_field(tmp_path):
    done = dryserve(
        "run",
        write_scenario(tmp_path),
        "--set",
        "workload.num_requests=7",
        "--json",
        "--no-report",
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["completed"] == 7


def test_rejected_requests_are_on_the_screen_with_their_reason(tmp_path):
    done = dryserve(
        "run", write_scenario(tmp_path), "--set", "engine.max_model_len=100", "--no-report", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Rejected:                                40" in done.stdout
    assert "40 x longer than max_model_len (100 tokens)" in done.stdout


def test_requests_in_flight_at_the_horizon_are_on_the_screen(tmp_path):
    done = dryserve("run", write_scenario(tmp_path), "--set", "horizon_s=0.5", "--no-report", cwd=tmp_path)
    assert "In flight:" in done.stdout
    assert "the horizon of 0.5 s left" in done.stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    path = write_scenario(tmp_path)
    command = [*DRYSERVE, "run", str(path), "--no-report", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_figures_that_cannot_be_drawn_cost_neither_screen_nor_tables(tmp_path):
    """A machine on which matplotlib does not even import."""
    broken = tmp_path / "broken" / "matplotlib"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no display, no fonts, no luck')")
    done = dryserve(
        "run", write_scenario(tmp_path), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "broken")}
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert done.returncode == 1
    assert done.stdout.startswith("============ Serving Benchmark Result")
    assert done.stderr.splitlines()[-1].endswith("no luck")
    assert {"summary.json", "requests.csv", "steps.csv"} <= {path.name for path in folder.iterdir()}


def test_scenarios_lists_each_with_its_question():
    lines = dryserve("scenarios").stdout.splitlines()
    assert any(line.startswith("quickstart ") for line in lines)
    assert all("?" in line for line in lines)


def test_version_and_help():
    assert dryserve("--version").stdout.startswith("dryserve ")
    assert "run" in dryserve("--help").stdout


def test_trace_writes_into_the_folder_of_a_run(run):
    (folder,) = (run[1] / "runs").iterdir()
    done = dryserve("trace", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'trace.json.gz'}\n"
    assert "40 requests" in done.stderr
    assert (folder / "trace.json.gz").is_file()


def test_trace_of_a_scenario_runs_it_and_says_where_it_was_cut(run):
    done = dryserve("trace", "small.yaml", "--set", "seed=1", "--max-events", "300", cwd=run[1])
    assert done.returncode == 0, done.stderr
    assert (run[1] / "small.trace.json.gz").is_file()
    assert "the window was cut to hold at most 300 events" in done.stderr
