"""The numbers that sweep figures read off their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sim.figures import (
    latency_parts,
    plot_attainment,
    plot_decomposition,
    plot_preemption_tax,
    plot_preemptions_per_request,
    plot_slo_heatmap,
)
from sim.figures.attainment import highest_rate
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
