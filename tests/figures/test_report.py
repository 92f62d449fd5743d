"""A report says what was simulated, shows its figures, and comes out the same from the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import sim.figures
from sim.report import Report, describe_load, write_report
from sim.scenario import Scenario, scenario_from_data
from tests.figures.helpers import make_fleet, make_requests, make_steps

LENGTHS = {"kind": "fixed", "prompt_tokens": 512, "output_tokens": 128}
SUMMARY = {
    "completed": 280,
    "num_requests": 300,
    "num_finished": 290,
    "num_rejected": 4,
    "num_aborted": 0,
    "num_in_flight": 6,
    "num_not_sent": 0,
    "request_throughput": 3.98765,
    "output_throughput": 12345.6,
    "mean_ttft_ms": 81.23,
    "p99_ttft_ms": 412.9,
    "thin_percentiles": ["p99_ttft_ms"],
    "slo": {"ttft_p99": {"limit_s": 0.4, "attainment": 0.984, "met": False}},
    "slo_attainment": 0.984,
    "slo_judged_requests": 284,
    "num_gpu_blocks": 1000,
    "calibration_id": "h100/made-up",
    "recomputed_token_share": 0.0613,
    "time_share_by_bound": {"compute": 0.25, "weights": 0.75, "kv": 0.0},
}


def make_scenario(**changes: object) -> Scenario:
    workload = {"kind": "poisson", "rate_per_s": 4, "num_requests": 300, "lengths": LENGTHS}
    data = {
        "name": "chat",
        "description": "Does chat keep its promise at 4 req/s?",
        "seed": 7,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "engine": {"max_model_len": 8192},
        "workload": workload,
        "slo": {"ttft_p99": "400ms"},
        "warmup_s": 2.0,
    }
    return scenario_from_data(data | changes)


def report(folder: Path, **changes: object) -> Report:
    run = {
        "requests": make_requests(300, unfinished=6),
        "steps": make_steps(),
        "summary": SUMMARY,
        "scenario": make_scenario(),
    }
    folder.mkdir(exist_ok=True)
    return write_report(folder, **(run | changes))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return report(tmp_path_factory.mktemp("run"))


def test_the_page_has_the_numbers_of_the_summary(written):
    page = written.page.read_text()
    assert "# chat" in page
    assert "Does chat keep its promise" in page
    assert "| requests | 300: 290 finished, 0 aborted, 4 rejected, 6 in flight, 0 not sent |" in page
    assert "| request throughput (req/s) | 3.99 |" in page
    assert "| output tokens (tok/s) | 12,346 |" in page
    assert "| TTFT | 81.2 | – | – | – | – | 413° |" in page
    assert "| ttft_p99 | 0.4 | 98.4 | **no** |" in page
    assert "| preemption tax (%) | 6.1 |" in page
    assert "| busy time by bound | weights 75.0 %, compute 25.0 % |" in page


def test_every_caption_names_loop_rate_sample_seed_warm_up_and_release(written):
    page = written.page.read_text()
    captions = [line for line in page.splitlines() if line.startswith("*") and line.endswith(".*")]
    assert len(captions) == 4
    for said in ("Open loop, Poisson arrivals at 4 req/s", "n = 280 finished requests", "seed 7"):
        assert all(said in line for line in captions)
    assert all(
        "warm-up 2 s left out; mirrors vLLM v0.16.0; calibration h100/made-up" in line for line in captions
    )


def test_the_figures_lie_beside_the_page(written):
    assert [path.name for path in written.figures] == ["latency.png", "load.png", "kv.png", "steps.png"]
    assert not written.failures
    for path in written.figures:
        assert f"(figures/{path.name})" in written.page.read_text()
        with Image.open(path) as image:
            assert image.width > 900
            assert set(image.info) <= {"dpi"}  # no date, no software version


def test_the_same_run_gives_the_same_bytes(written, tmp_path):
    again = report(tmp_path)
    assert written.page.read_bytes() == again.page.read_bytes()
    for a, b in zip(written.figures, again.figures, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_a_figure_that_fails_is_named_and_costs_the_others_nothing(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(sim.figures, "plot_kv_timeline", broken)
    written = report(tmp_path)
    assert written.failures == {"kv": "RuntimeError: no ink"}
    assert [path.name for path in written.figures] == ["latency.png", "load.png", "steps.png"]
    assert "**kv.png could not be drawn:** `RuntimeError: no ink`" in written.page.read_text()


def test_a_run_without_recorded_steps_still_has_its_latencies(tmp_path):
    written = report(tmp_path, steps=make_steps().iloc[:0])
    assert [path.name for path in written.figures] == ["latency.png"]


def test_a_fleet_and_a_run_in_which_nothing_finished(tmp_path):
    nothing = make_requests(20, unfinished=20)
    written = report(tmp_path, steps=make_fleet(), requests=nothing, notes=("row 7 was cut",))
    assert not written.failures
    assert "* row 7 was cut" in written.page.read_text()


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"kind": "closed_loop", "num_requests": 9, "max_concurrency": 16},
         "Closed loop, 16 requests in flight"),
        ({"kind": "burst", "num_requests": 1000}, "Open loop, all 1,000 requests at t = 0"),
        ({"kind": "gamma", "rate_per_s": 2.5, "num_requests": 9, "burstiness": 0.5},
         "Open loop, gamma arrivals (burstiness 0.5) at 2.5 req/s"),
        ({"kind": "constant", "rate_per_s": 2, "num_requests": 9, "max_concurrency": 4},
         "Open loop, equal gaps at 2 req/s, client keeps at most 4 in flight"),
    ],
)  # fmt: skip
def test_how_a_load_is_described(workload, said):
    assert describe_load(make_scenario(workload=workload | {"lengths": LENGTHS})) == said


def test_importing_the_report_loads_neither_matplotlib_nor_pandas():
    code = "import sys, sim.report; print({'matplotlib', 'pandas'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "set()"
