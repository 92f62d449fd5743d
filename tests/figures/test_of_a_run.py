"""Figures and report of a simulated run agree with its summary, and come out alike from its folder."""

from __future__ import annotations

import numpy as np
import pytest

from sim.figures import plot_kv_timeline, plot_load_timeline, plot_step_composition
from sim.figures.samples import latency_s
from sim.report.run_report import write_report
from sim.results import run_folder
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


def test_preemptions_are_told_one_by_one_and_add_up_to_what_requests_lost(result):
    times, requests = result.preemption_times, result.requests.set_index("request_id")
    counts = times["request_id"].value_counts()
    assert counts.sort_index().to_dict() == requests["num_preemptions"].loc[lambda n: n > 0].to_dict()
    waited_s = (times["resumed_s"] - times["preempted_s"]).groupby(times["request_id"]).sum()
    assert waited_s.to_numpy() == pytest.approx(
        requests.loc[waited_s.index, "stalled_s"].to_numpy(), abs=1e-7
    )
    assert (times["resumed_s"] >= times["preempted_s"]).all()
    assert (times["next_token_s"] > times["resumed_s"]).all()
    ends = set(result.steps["end_s"])
    assert set(times["next_token_s"]) <= ends, "tokens come when steps end"


def test_a_request_still_waiting_to_come_back_has_no_end_of_its_preemption():
    cut = simulate(load_scenario("kv-starved", ["horizon_s=20", "engine.num_gpu_blocks_override=800"]))
    times = cut.preemption_times
    lost = times[times["resumed_s"].isna()]
    assert lost["next_token_s"].isna().all()
    assert len(times) == cut.requests["num_preemptions"].sum()
    assert set(lost["request_id"]) <= set(cut.requests.query("status == 'in_flight'")["request_id"])


def test_results_draw_their_own_figures(result, tmp_path):
    names = [name for name in dir(result.plot) if not name.startswith("_")]
    drawn = {name: getattr(result.plot, name)() for name in names}
    assert drawn["latency_cdf"].get_xlabel() == "TTFT (s, log)"
    assert drawn["kv_timeline"].get_ylabel() == "KV blocks (%)"
    assert "request_waterfall" in repr(result.plot)
    saved = run_folder.load(run_folder.write(result, tmp_path))
    assert saved.plot.latency_cdf(metric="e2e").get_xlabel() == "E2E (s)"


def test_a_notebook_shows_a_result_as_tables(result):
    page = result._repr_html_()
    assert "<table>" in page
    assert f"<td>{result.summary['num_preemptions']}</td>" in page


def test_the_report_drawn_again_from_the_folder_is_the_same(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    first = write_report(run_folder.saved(result, folder))
    assert not first.failures
    before = {path.name: path.read_bytes() for path in (first.page, first.html, *first.figures)}
    again = write_report(run_folder.load(folder))
    assert {path.name: path.read_bytes() for path in (again.page, again.html, *again.figures)} == before
