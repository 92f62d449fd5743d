"""F7 and F8 show every step's state, and of long runs the mean with its extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.figures import close_window, plot_kv_timeline, plot_load_timeline, worst_minute
from sim.figures.timeline import fleet_curve, step_curve, stretches
from tests.figures.helpers import make_fleet, make_requests, make_steps


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def test_a_step_holds_its_value_from_its_start_to_the_next():
    steps = make_steps(3)
    steps["step_time_s"] = [1.0, 2.0, 1.0]
    steps["end_s"] = [1.0, 3.0, 4.0]
    x, y = step_curve(steps, np.array([5.0, 6.0, 7.0]), idle=0.0)
    assert x.tolist() == [0.0, 1.0, 3.0, 4.0]
    assert y.tolist() == [5.0, 6.0, 7.0, 7.0]


def test_nothing_runs_while_the_engine_idles():
    steps = make_steps(2)
    steps["step_time_s"] = [1.0, 1.0]
    steps["end_s"] = [1.0, 5.0]
    steps["num_running"] = [3, 4]
    curve = line(plot_load_timeline(steps), "running")
    assert curve.get_xdata().tolist() == [0.0, 1.0, 4.0, 5.0]
    assert curve.get_ydata().tolist() == [3.0, 0.0, 4.0, 4.0]
    assert curve.get_drawstyle() == "steps-post"


def test_kv_is_per_cent_of_the_pool_and_the_paler_area_lies_on_top():
    steps = make_steps(50)
    ax = plot_kv_timeline(steps, num_blocks=1000)
    used = line(ax, "used").get_ydata()[:-1]
    assert used == pytest.approx(steps["kv_used_blocks"].to_numpy() / 10)
    pale = ax.collections[0].get_paths()[0].vertices[:, 1].max()
    assert pale == pytest.approx((steps["kv_used_blocks"] + steps["kv_cached_blocks"]).max() / 10)
    assert ax.get_ylabel() == "KV blocks (%)"


def test_kv_without_a_pool_size_is_in_blocks():
    ax = plot_kv_timeline(make_steps(50))
    assert ax.get_ylabel() == "KV blocks"
    assert line(ax, "used").get_ydata().max() == make_steps(50)["kv_used_blocks"].max()


def test_one_tick_for_each_step_that_preempted():
    steps = make_steps()
    ax = plot_kv_timeline(steps, num_blocks=1000)
    ticks = next(c for c in ax.collections if c.get_label().startswith("preemptions"))
    preempting = steps[steps["num_preemptions"] > 0]
    assert len(ticks.get_segments()) == len(preempting) > 0
    assert ticks.get_label() == f"preemptions ({steps['num_preemptions'].sum()})"


def test_a_fleet_gets_a_panel_for_each_replica_on_shared_axes():
    top = plot_load_timeline(make_fleet(3))
    panels = top.figure.axes
    assert len(panels) == 3
    assert len({ax.get_xlim() for ax in panels}) == len({ax.get_ylim() for ax in panels}) == 1


def test_a_large_fleet_says_how_much_of_it_is_shown():
    top = plot_load_timeline(make_fleet(30, n=20))
    assert len(top.figure.axes) == 12
    assert "12 of 30 replicas" in [text.get_text() for text in top.figure.legends[0].get_texts()]


def test_a_fleet_does_not_fit_one_axes():
    ax = plot_load_timeline(make_steps())
    with pytest.raises(ValueError, match="3 replicas"):
        plot_load_timeline(make_fleet(3), ax)


def test_a_long_run_keeps_its_spikes():
    steps = make_steps(300_000)
    steps.loc[123_456, "num_waiting"] = 777
    ax = plot_load_timeline(steps)
    assert len(line(ax, "waiting").get_xdata()) < 5000
    assert max(band.get_paths()[0].vertices[:, 1].max() for band in ax.collections) == 777


def test_a_run_without_steps_draws_empty_axes():
    for plot in (plot_load_timeline, plot_kv_timeline):
        assert plot(make_steps().iloc[:0]).get_xlabel() == "time (s)"


def test_a_long_run_is_its_mean_over_time_within_its_extremes():
    """Two runs of one load, one of them told in ten times as many steps, look the same."""
    moments = np.arange(20_000.0)
    running = np.where(moments % 2 == 0, 1, 9)
    steps = make_steps(20_000).assign(end_s=moments + 1.0, step_time_s=1.0, num_running=running)
    ax = plot_load_timeline(steps)
    curve = line(ax, "running")
    assert len(curve.get_xdata()) < 1000
    assert np.abs(curve.get_ydata() - 5.0).max() < 0.5
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.0, 9.0)


def test_runs_side_by_side_are_a_colour_each_and_their_fleets_are_summed():
    runs = {"one": make_steps(100), "three": make_fleet(3, n=100)}
    ax = plot_load_timeline(runs)
    solid = {line.get_label(): line for line in ax.lines if line.get_label() in runs}
    assert len({line.get_color() for line in solid.values()}) == 2
    assert solid["one"].get_ydata()[:-1].max() == runs["one"]["num_running"].max()
    assert solid["three"].get_ydata().max() <= 3 * runs["three"]["num_running"].max()
    assert "waiting" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_runs_side_by_side_share_a_kv_axis_in_per_cent_of_their_own_pools():
    runs = {"one": make_steps(100), "three": make_fleet(3, n=100)}
    ax = plot_kv_timeline(runs, num_blocks={"one": 1000, "three": 2000})
    heights = {line.get_label(): line.get_ydata().max() for line in ax.lines if line.get_label() in runs}
    assert heights["one"] == pytest.approx(runs["one"]["kv_used_blocks"].max() / 10)
    assert heights["three"] <= runs["three"]["kv_used_blocks"].max() / 20
    assert ax.get_ylabel() == "KV blocks in use (%)"


def test_a_fleet_is_the_sum_of_its_replicas_at_every_moment():
    fleet = make_fleet(3, n=50)
    x, y = fleet_curve(fleet, "num_running")
    for moment in np.linspace(0.0, fleet["end_s"].max() * 0.999, 37):
        total = 0.0
        for _, rows in fleet.groupby("replica"):
            at, value = step_curve(rows, rows["num_running"].to_numpy(dtype=float))
            place = np.searchsorted(at, moment, side="right") - 1
            total += value[place] if 0 <= place < len(at) - 1 else 0.0
        assert y[np.searchsorted(x, moment, side="right") - 1] == total
    assert y[-1] == 0.0


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=60, unique=True),
    st.lists(st.integers(-50, 50), min_size=60, max_size=60),
    st.integers(1, 12),
)
def test_a_stretch_has_the_mean_and_the_extremes_that_a_fine_comb_finds(times, heights, count):
    x, y = np.sort(np.array(times, dtype=float)), np.array(heights[: len(times)], dtype=float)
    edges = np.linspace(x[0], x[-1], count + 1)
    mean, low, high = stretches(x, y, edges)
    comb = (np.arange(0, 5000) + 0.5) / 5000
    for i in range(count):
        moments = edges[i] + comb * (edges[i + 1] - edges[i])
        values = y[np.searchsorted(x, moments, side="right") - 1]
        assert mean[i] == pytest.approx(values.mean(), abs=0.05 * 100)
        assert low[i] <= values.min()
        assert values.max() <= high[i]
    assert np.dot(mean, np.diff(edges)) == pytest.approx(np.dot(y[:-1], np.diff(x)), abs=1e-6)


def test_the_worst_minute_is_that_of_most_preemptions_else_of_most_waiting():
    calm = make_steps(20_000).assign(num_preemptions=0, step_time_s=0.02)
    calm["end_s"] = 0.02 * (calm.index + 1.0)
    waiting = calm.assign(num_waiting=0)
    waiting.loc[waiting["end_s"].between(130, 150), "num_waiting"] = 5
    assert worst_minute(waiting) == (120.0, 180.0)
    assert worst_minute(waiting, warmup_s=15.0) == (135.0, 195.0), "minutes begin with the warm-up's end"
    hit = waiting.copy()
    hit.loc[hit["end_s"].between(200, 201), "num_preemptions"] = 1
    assert worst_minute(hit) == (180.0, 240.0)
    assert worst_minute(calm.assign(num_waiting=0))[1] <= calm["end_s"].max()
    assert worst_minute(calm.iloc[:0]) == (0.0, 1.0)


def test_the_close_window_begins_where_preemptions_are_densest():
    steps = make_steps(5_000).assign(num_preemptions=0, step_time_s=0.01)
    steps["end_s"] = 0.01 * (steps.index + 1.0)
    steps.loc[[100, 900], "num_preemptions"] = 1
    steps.loc[2000:2100:10, "num_preemptions"] = 1
    start, end = close_window(make_requests(200), steps)
    assert start == pytest.approx(20.01 - 1.0)
    assert start < end <= 50.0
