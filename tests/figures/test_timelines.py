"""F7 and F8 show every step's state, thinned only where no pixel can tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.figures import plot_kv_timeline, plot_load_timeline
from sim.figures.envelope import column_of, envelope
from sim.figures.timeline import step_curve
from tests.figures.helpers import make_fleet, make_steps


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def test_a_step_holds_its_value_from_its_start_to_the_next():
    steps = make_steps(3)
    steps["step_time_s"] = [1.0, 2.0, 1.0]
    steps["t_s"] = [1.0, 3.0, 4.0]
    x, y = step_curve(steps, np.array([5.0, 6.0, 7.0]), idle=0.0)
    assert x.tolist() == [0.0, 1.0, 3.0, 4.0]
    assert y.tolist() == [5.0, 6.0, 7.0, 7.0]


def test_nothing_runs_while_the_engine_idles():
    steps = make_steps(2)
    steps["step_time_s"] = [1.0, 1.0]
    steps["t_s"] = [1.0, 5.0]
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
    curve = line(plot_load_timeline(steps), "waiting")
    assert len(curve.get_xdata()) < 5000
    assert curve.get_ydata().max() == 777


def test_a_run_without_steps_draws_empty_axes():
    for plot in (plot_load_timeline, plot_kv_timeline):
        assert plot(make_steps().iloc[:0]).get_xlabel() == "time (s)"


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=400),
    st.lists(st.integers(-50, 50), min_size=400, max_size=400),
    st.integers(1, 20),
)
def test_every_pixel_column_keeps_its_first_last_lowest_and_highest(times, heights, columns):
    x = np.sort(np.array(times))
    y = np.array(heights[: len(x)], dtype=np.float64)
    keep = envelope(x, y, columns)
    assert np.all(np.diff(keep) > 0)
    assert len(keep) <= max(4 * columns, 1)
    column = column_of(x, x[0], x[-1], columns)
    for c in np.unique(column):
        all_of, kept = np.flatnonzero(column == c), keep[column[keep] == c]
        assert {kept[0], kept[-1]} == {all_of[0], all_of[-1]}
        assert (y[kept].min(), y[kept].max()) == (y[all_of].min(), y[all_of].max())
