"""The numbers that sweep figures read off their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sim.figures import (
    latency_parts,
    plot_attainment,
    plot_capacity_cost,
    plot_decomposition,
    plot_fairness,
    plot_latency_throughput,
    plot_preemption_tax,
    plot_preemptions_per_request,
    plot_slo_heatmap,
)
from sim.figures.attainment import highest_rate
from sim.figures.fairness import jain_of_classes, longest_wait_s, percentile_interval
from sim.figures.kv_cliff import Fall, steepest
from sim.figures.pareto import frontier
from sim.figures.samples import latency_s
from sim.figures.saturation import knee
from tests.figures.helpers import make_requests


def array(*values):
    return np.array(values, dtype=np.float64)


def test_goodput_lies_where_the_line_falls_through_the_target():
    assert highest_rate(array(1, 2, 3), array(1.0, 0.95, 0.85), 0.9) == pytest.approx(2.5)


def test_goodput_is_the_highest_rate_if_all_hold_and_none_if_the_first_misses():
    assert highest_rate(array(1, 2, 3), array(1.0, 1.0, 0.9), 0.9) == 3.0
    assert np.isnan(highest_rate(array(1, 2), array(0.5, 0.95), 0.9))
    assert np.isnan(highest_rate(array(), array(), 0.9))


def test_a_recovery_after_the_first_miss_does_not_count():
    assert highest_rate(array(1, 2, 3), array(1.0, 0.8, 1.0), 0.9) == pytest.approx(1.5)


def test_the_attainment_axis_starts_at_zero():
    ax = plot_attainment(pd.DataFrame({"rate_per_s": [1.0, 2.0], "attainment": [1.0, 0.98]}))
    assert ax.get_ylim()[0] == 0.0


def test_the_knee_is_the_last_rate_kept_up_with():
    assert knee(array(1, 2, 3), array(1.0, 1.96, 2.5)) == 1
    assert knee(array(1, 2), array(1.0, 2.0)) == 1
    assert knee(array(1, 2), array(0.5, 2.0)) is None


def test_the_frontier_holds_what_nobody_beats():
    x, y = array(1, 2, 3, 2, 3), array(9, 5, 4, 7, 4.5)
    assert frontier(x, y).tolist() == [0, 3, 4]


def test_the_frontier_by_brute_force():
    rng = np.random.default_rng(3)
    x, y = rng.random(60), rng.random(60)
    unbeaten = [i for i in range(60) if not np.any((x >= x[i]) & (y >= y[i]) & ((x > x[i]) | (y > y[i])))]
    assert sorted(frontier(x, y).tolist()) == unbeaten


def test_the_heatmap_prints_each_cell_and_boxes_the_best():
    table = pd.DataFrame({"a": [1, 2, 1], "b": [10, 10, 20], "attainment": [0.5, 0.75, 0.995]})
    ax = plot_slo_heatmap(table, "a", "b")
    assert sorted(text.get_text() for text in ax.texts) == ["50", "75", "99.5"]
    assert ax.images[0].get_clim() == (0.0, 100.0)
    assert ax.patches[0].get_xy() == (-0.5, 0.5)


def test_two_runs_of_one_cell_are_refused():
    table = pd.DataFrame({"a": [1, 1], "b": [10, 10], "attainment": [0.5, 0.75]})
    with pytest.raises(ValueError, match="duplicate"):
        plot_slo_heatmap(table, "a", "b")


def test_the_tax_is_in_per_cent_of_all_computed_tokens():
    ax = plot_preemption_tax(
        pd.DataFrame({"kv_tokens": [20_000, 10_000], "recomputed_token_share": [0.0, 0.25]})
    )
    assert ax.lines[0].get_xdata().tolist() == [10.0, 20.0]
    assert ax.lines[0].get_ydata().tolist() == [25.0, 0.0]


def test_preemptions_per_request_are_counted():
    requests = make_requests(6).assign(num_preemptions=[0, 0, 0, 1, 1, 4])
    bars = plot_preemptions_per_request(requests).patches
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bars] == [(0, 3), (1, 2), (4, 1)]


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_parts_of_a_latency_add_up_to_it(metric):
    requests = make_requests(200, unfinished=5)
    assert latency_parts(requests, metric).sum(axis=1).to_numpy() == pytest.approx(
        latency_s(requests, metric)
    )


def test_bands_hold_every_request_once_and_their_bars_are_means():
    parts = pd.DataFrame({"queued": np.arange(100.0), "running": 1.0})
    ax = plot_decomposition(parts)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["p0–p50\nn=50", "p50–p90\nn=40", "p90–p99\nn=9", "p99–p100\nn=1"]
    queued, running = ax.containers
    assert [bar.get_height() for bar in queued] == [24.5, 69.5, 94.0, 99.0]
    assert [bar.get_y() for bar in running] == [24.5, 69.5, 94.0, 99.0]


def test_the_latency_of_an_overloaded_engine_bends_back_in_order_of_load():
    """Beyond saturation throughput falls again: points are joined by rate, not by throughput."""
    table = pd.DataFrame(
        {
            "rate_per_s": [3.0, 1.0, 2.0],
            "output_throughput": [180.0, 100.0, 200.0],
            "median_ttft_ms": [900.0, 30.0, 100.0],
            "p99_ttft_ms": [9000.0, 60.0, 500.0],
            "completed": [2000, 500, 2000],
        }
    )
    ax = plot_latency_throughput(table)
    p50, p99 = (line for line in ax.lines if len(line.get_xdata()) == 3)
    assert p50.get_xdata().tolist() == [100.0, 200.0, 180.0]
    assert p99.get_ydata().tolist() == [0.06, 0.5, 9.0]
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in hollow] == [(100.0, 0.06)]


def test_what_a_dollar_buys_is_capacity_over_cost_and_the_most_comes_first():
    table = pd.DataFrame(
        {
            "label": ["dear", "cheap", "hopeless"],
            "capacity_per_s": [10.0, 5.0, np.nan],
            "cost_per_h": [36.0, 9.0, 1.0],
        }
    )
    ax = plot_capacity_cost(table)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cheap", "dear", "hopeless"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([2.0, 1.0, 0.0])
    assert ax.texts[-1].get_text() == "no rate keeps the SLO"


def served(name: str, waited_s: float, tokens_per_s: float) -> dict[str, object]:
    return {"class": name, "arrival_s": 0.0, "first_scheduled_s": waited_s, "first_token_s": waited_s,
            "last_token_s": 10.0, "output_tokens": 10.0 * tokens_per_s, "status": "finished"}  # fmt: skip


def test_jains_index_is_one_for_equals_and_one_half_if_one_of_two_gets_all():
    assert jain_of_classes(pd.DataFrame([served("a", 0, 5), served("b", 0, 5)])) == pytest.approx(1.0)
    unequal = pd.DataFrame([served("a", 0, 1e6), served("b", 0, 1e-3)])
    assert jain_of_classes(unequal) == pytest.approx(0.5, abs=1e-6)


def test_who_was_never_scheduled_has_waited_to_the_end():
    table = pd.DataFrame([served("a", 2.0, 1), served("a", np.nan, 1), served("a", np.nan, 1)])
    table["status"] = ["finished", "in_flight", "rejected"]
    assert longest_wait_s(table) == 10.0
    assert longest_wait_s(table, end_s=50.0) == 50.0
    assert longest_wait_s(table.iloc[[0, 2]]) == 2.0
    hung_up = table.assign(status=["finished", "aborted", "rejected"], aborted_s=[np.nan, 7.0, np.nan])
    assert longest_wait_s(hung_up) == 7.0


def test_fairness_marks_the_percentile_of_each_class_where_it_lies():
    requests = make_requests(2400).assign(**{"class": lambda t: np.where(t["request_id"] % 2, "odd", "even")})
    ax = plot_fairness(requests)
    dots = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    for name, dot in zip(("even", "odd"), dots, strict=True):
        of = latency_s(requests[requests["class"].eq(name)], "ttft")
        assert dot.get_xdata()[0] == pytest.approx(np.percentile(of, 99))
        assert dot.get_markerfacecolor() != "white"


def test_the_interval_of_a_percentile_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(5)
    truth = -np.log(0.1)  # p90 of an exponential
    covered = [
        low <= truth <= high
        for low, high in (percentile_interval(rng.exponential(size=400), 90.0) for _ in range(600))
    ]
    assert 0.93 <= np.mean(covered) <= 0.99


def test_the_cliff_is_where_least_blocks_cost_most():
    blocks, latency = array(800, 1000, 1050, 1100), array(100.0, 50.0, 10.0, 9.0)
    assert steepest(blocks, latency) == Fall(1050.0, 1000.0, 5.0)
    assert steepest(blocks, array(1, 2, 3, 4)) is None
    assert steepest(array(100, 200), array(9.0, 1.0)) is None, "half the blocks less is no small step"
