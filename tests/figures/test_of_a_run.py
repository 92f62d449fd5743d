"""Figures and report of a simulated run agree with its summary, and come out alike from its folder."""

from __future__ import annotations

import numpy as np
import pytest

from sim import run_folder
from sim.figures import plot_kv_timeline, plot_load_timeline, plot_step_composition
from sim.figures.samples import latency_s
from sim.report import write_report
from sim.scenario import load_scenario
from sim.simulation import simulate


@pytest.fixture(scope="module")
def result():
    changes = ["workload.num_requests=120", "engine.num_gpu_blocks_override=700", "warmup_s=1"]
    return simulate(load_scenario("kv-starved", changes))


@pytest.mark.parametrize(("metric", "key"), [("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")])
def test_samples_of_figures_have_the_percentiles_of_the_summary(result, metric, key):
    measured = result.requests[result.requests["arrival_s"] >= 1]
    sample_ms = latency_s(measured, metric) * 1000
    assert np.percentile(sample_ms, 99) == pytest.approx(result.summary[f"p99_{key}_ms"], abs=1e-5)
    assert np.mean(sample_ms) == pytest.approx(result.summary[f"mean_{key}_ms"], abs=1e-5)


def test_the_kv_figure_never_exceeds_the_pool(result):
    blocks = result.setup.num_gpu_blocks
    held = result.steps["kv_used_blocks"] + result.steps["kv_cached_blocks"]
    assert held.max() <= blocks
    few = result.steps.iloc[:400]
    used = next(line for line in plot_kv_timeline(few, num_blocks=blocks).lines if line.get_label() == "used")
    assert max(used.get_ydata()) == pytest.approx(100 * few["kv_used_blocks"].max() / blocks)


def test_back_to_back_steps_leave_no_gaps_in_the_load(result):
    """Times in tables are rounded to the nanosecond; that must not look like an idle engine."""
    steps = result.steps
    busy = steps[steps["num_running"] > 0]
    line = next(line for line in plot_load_timeline(busy.iloc[50:150]).lines if line.get_label() == "running")
    assert min(line.get_ydata()) > 0


def test_a_step_figure_of_the_run_shows_its_recompute(result):
    assert result.steps["recompute_tokens"].sum() == result.requests["recomputed_tokens"].sum() > 0
    labels = plot_step_composition(result.steps).get_legend_handles_labels()[1]
    assert "recompute" in labels


def test_the_report_drawn_again_from_the_folder_is_the_same(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    first = write_report(folder, result.requests, result.steps, result.summary, result.resolved, result.notes)
    assert not first.failures
    before = {path.name: path.read_bytes() for path in (first.page, *first.figures)}
    saved = run_folder.load(folder)
    again = write_report(
        folder, saved.requests, saved.steps, saved.summary, saved.scenario, saved.summary["notes"]
    )
    assert {path.name: path.read_bytes() for path in (again.page, *again.figures)} == before
