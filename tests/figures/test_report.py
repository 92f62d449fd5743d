"""A report says what was simulated, shows its figures, and comes out the same from the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import sim.figures
from sim.report import markdown
from sim.report.comparison import comparison_blocks, labels_of, write_comparison
from sim.report.document import Document
from sim.report.run_report import Report, describe_load, write_report
from sim.results.run_folder import SavedRun
from sim.scenario import Scenario, scenario_from_data
from tests.figures.helpers import make_fleet, make_requests, make_steps

FIGURES = [f"{name}.png" for name in ["latency", "parts", "load", "kv", "waterfall", "steps", "preemptions"]]
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


def make_run(folder: Path, **changes: object) -> SavedRun:
    fields = {
        "requests": make_requests(300, unfinished=6),
        "steps": make_steps(),
        "summary": SUMMARY,
        "scenario": make_scenario(),
    }
    folder.mkdir(exist_ok=True)
    return SavedRun(folder, **(fields | changes))


def report(folder: Path, **changes: object) -> Report:
    return write_report(make_run(folder, **changes))


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
    assert "| what bounds the steps, by their time | weights 75.0 %, compute 25.0 % |" in page


def test_every_caption_names_loop_rate_sample_seed_warm_up_and_release(written):
    page = written.page.read_text()
    captions = [line for line in page.splitlines() if line.startswith("*") and line.endswith(".*")]
    assert len(captions) == len(FIGURES)
    for said in ("Open loop, Poisson arrivals at 4 req/s", "n = 280 finished requests", "seed 7"):
        assert all(said in line for line in captions)
    assert all(
        "warm-up 2 s left out; mirrors vLLM v0.16.0; calibration h100/made-up" in line for line in captions
    )


def test_the_figures_lie_beside_the_page(written):
    assert [path.name for path in written.figures] == FIGURES
    assert not written.failures
    for path in written.figures:
        assert f"(figures/{path.name})" in written.page.read_text()
        with Image.open(path) as image:
            assert image.width >= 750
            assert set(image.info) <= {"dpi"}  # no date, no software version


def test_the_same_run_gives_the_same_bytes(written, tmp_path):
    again = report(tmp_path)
    assert written.page.read_bytes() == again.page.read_bytes()
    assert written.html.read_bytes() == again.html.read_bytes()
    for a, b in zip(written.figures, again.figures, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_a_figure_that_fails_is_named_and_costs_the_others_nothing(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(sim.figures, "plot_kv_timeline", broken)
    written = report(tmp_path)
    assert written.failures == {"kv": "RuntimeError: no ink"}
    assert [path.name for path in written.figures] == [name for name in FIGURES if name != "kv.png"]
    assert "**kv.png could not be drawn:** `RuntimeError: no ink`" in written.page.read_text()


def test_a_run_without_recorded_steps_still_has_its_latencies(tmp_path):
    written = report(tmp_path, steps=make_steps().iloc[:0])
    assert [path.name for path in written.figures] == ["latency.png", "parts.png", "preemptions.png"]


def test_a_fleet_and_a_run_in_which_nothing_finished(tmp_path):
    nothing = make_requests(20, unfinished=20)
    summary = SUMMARY | {"notes": ["row 7 was cut"]}
    written = report(tmp_path, steps=make_fleet(), requests=nothing, summary=summary)
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
    modules = "sys, sim.report.run_report, sim.report.comparison, sim.report.answer"
    code = f"import {modules}; print({{'matplotlib', 'pandas'}} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    faster = SUMMARY | {"completed": 290, "p99_ttft_ms": 206.45, "slo_attainment": 0.999}
    runs = [
        make_run(folder / "a"),
        make_run(folder / "b", summary=faster, scenario=make_scenario(cluster={"replicas": 2})),
    ]
    return write_comparison(runs, folder / "out")


def test_a_comparison_names_the_field_that_differs_and_calls_the_runs_by_it(compared):
    page = compared.page.read_text()
    assert page.startswith("# replicas=1 vs replicas=2\n")
    assert "| `cluster.replicas` | 1 | 2 |" in page
    assert "The runs got the same requests at the same moments." in page


def test_a_comparison_gives_each_number_and_its_difference(compared):
    page = compared.page.read_text()
    assert "| p99 TTFT (ms) | 413° | 206° | -50.0 % |" in page
    assert "| SLO attainment (%) | 98.4 | 99.9 | +1.5 pt |" in page
    assert "| output tokens (tok/s) | 12,346 | 12,346 | = |" in page


def test_a_comparison_has_every_figure_with_all_runs(compared):
    assert not compared.failures
    names = {path.stem for path in compared.figures}
    assert names == {"latency", "parts", "load", "kv", "waterfall", "preemptions"}


def test_the_same_requests_are_compared_one_by_one(tmp_path):
    slow = make_requests(300, unfinished=6)
    slow["first_token_s"] += 0.25 + 0.01 * (slow["request_id"] % 3)
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", requests=slow)]
    page = page_of(runs)
    measured = slow[(slow["arrival_s"] >= 2.0) & slow["status"].eq("finished")]
    row = next(line for line in page.splitlines() if line.startswith("| b | TTFT |"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    low, high = (float(end) for end in cells[3].split(" to "))
    assert float(cells[2]) == pytest.approx(0.26, abs=0.001)
    assert low <= 0.26 <= high
    assert cells[4] == str(len(measured))


def page_of(runs: list[SavedRun]) -> str:
    """The page without its figures."""
    labels = labels_of(runs)
    return markdown.render(Document(" vs ".join(labels), comparison_blocks(labels, runs)))


def test_runs_of_different_scenarios_are_called_by_their_names(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", scenario=make_scenario(name="code"))]
    assert labels_of(runs) == ["chat", "code"]
    runs.append(make_run(tmp_path / "c", scenario=make_scenario(name="batch")))
    assert "| code − first | batch − first |" in page_of(runs)


def test_the_same_run_twice_has_two_labels(tmp_path):
    run = make_run(tmp_path / "a")
    page = page_of([run, run])
    assert page.startswith("# a (1) vs a (2)\n")
    assert "Nothing: the scenarios are the same." in page


def test_runs_that_differ_in_much_are_called_by_their_folders(tmp_path):
    other = make_scenario(seed=8, cluster={"replicas": 2}, warmup_s=3.0)
    assert labels_of([make_run(tmp_path / "a"), make_run(tmp_path / "b", scenario=other)]) == ["a", "b"]
