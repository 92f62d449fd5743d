"""F9's bars are as wide as the steps took and as high as the tokens they held."""

from __future__ import annotations

import numpy as np
import pytest

from sim.figures import busiest_steps, plot_step_composition
from tests.figures.helpers import make_fleet, make_steps


def rectangles(ax, label):
    """Left, right, bottom and top of each bar of a layer."""
    bars = next(c for c in ax.collections if c.get_label() == label)
    corners = [path.vertices for path in bars.get_paths()]
    return np.array([[*v.min(axis=0), *v.max(axis=0)] for v in corners])[:, [0, 2, 1, 3]]


def test_widths_are_step_times_and_stacked_heights_are_tokens():
    steps = make_steps(60)
    ax = plot_step_composition(steps)
    decode, prefill = rectangles(ax, "decode"), rectangles(ax, "prefill")
    assert decode[:, 1] == pytest.approx(steps["end_s"].to_numpy())
    assert decode[:, 1] - decode[:, 0] == pytest.approx(steps["step_time_s"].to_numpy())
    assert decode[:, 3] - decode[:, 2] == pytest.approx(steps["decode_tokens"].to_numpy())
    with_prefill = steps[steps["prefill_tokens"] > 0]
    assert prefill[:, 2] == pytest.approx(with_prefill["decode_tokens"].to_numpy())
    assert prefill[:, 3] == pytest.approx(
        (with_prefill["decode_tokens"] + with_prefill["prefill_tokens"]).to_numpy()
    )


def test_recomputed_tokens_lie_on_top_and_are_hatched():
    steps = make_steps()
    ax = plot_step_composition(steps)
    bars = next(c for c in ax.collections if c.get_label() == "recompute")
    tops = rectangles(ax, "recompute")[:, 3]
    again = steps[steps["recompute_tokens"] > 0]
    total = again["decode_tokens"] + again["prefill_tokens"] + again["recompute_tokens"]
    assert tops == pytest.approx(total.to_numpy())
    assert bars.get_hatch()


def test_without_recompute_the_legend_does_not_speak_of_it():
    ax = plot_step_composition(make_steps().assign(recompute_tokens=0))
    assert "recompute" not in [text.get_text() for text in ax.get_legend().get_texts()]


def test_the_window_shows_the_steps_that_overlap_it():
    steps = make_steps()
    ax = plot_step_composition(steps, t0=0.5, t1=1.0)
    overlapping = steps[(steps["end_s"] > 0.5) & (steps["end_s"] - steps["step_time_s"] < 1.0)]
    assert len(rectangles(ax, "decode")) == len(overlapping)
    assert ax.get_xlim() == (0.5, 1.0)


def test_the_budget_line_lies_at_the_budget():
    ax = plot_step_composition(make_steps(), token_budget=2048)
    assert [line.get_ydata()[0] for line in ax.lines] == [2048]
    assert ax.get_ylim()[1] > 2048


def test_a_budget_far_above_the_bars_is_named_and_leaves_them_their_height():
    steps = make_steps().assign(prefill_tokens=0, recompute_tokens=0)
    ax = plot_step_composition(steps, token_budget=8192)
    assert [text.get_text() for text in ax.texts] == ["token budget 8,192 ↑"]
    assert ax.get_ylim()[1] == pytest.approx(1.1 * steps["decode_tokens"].max())


def test_step_times_are_on_a_second_axis_in_milliseconds():
    steps = make_steps(60)
    ax = plot_step_composition(steps, step_time=True)
    other = next(a for a in ax.figure.axes if a is not ax)
    heights = [segment[0][1] for segment in other.collections[0].get_segments()]
    assert heights == pytest.approx((steps["step_time_s"] * 1000).tolist())


def test_merged_steps_keep_their_mean_and_their_largest():
    steps = make_steps(20_000).assign(step_time_s=0.02, end_s=lambda table: 0.02 * (table.index + 1.0))
    steps["prefill_tokens"] = steps["prefill_tokens"].clip(upper=40)
    steps["recompute_tokens"] = 0
    ax = plot_step_composition(steps)
    total = steps["decode_tokens"] + steps["prefill_tokens"] + steps["recompute_tokens"]
    assert rectangles(ax, "largest step")[:, 3].max() == total.max()
    decode = rectangles(ax, "decode")
    assert len(decode) < 1000
    assert np.mean(decode[:, 3]) == pytest.approx(steps["decode_tokens"].mean(), rel=0.005)
    assert ax.get_ylabel() == "tokens in mean step"


def test_the_busiest_steps_are_the_stretch_that_recomputed_most():
    steps = make_steps(500).assign(recompute_tokens=0)
    steps.loc[[300, 310, 350], "recompute_tokens"] = [5, 6, 100]
    few = busiest_steps(steps, count=50)
    assert len(few) == 50
    assert few["recompute_tokens"].sum() == 106
    assert busiest_steps(steps, warmup_s=steps["end_s"][340], count=50)["recompute_tokens"].sum() == 100


def test_without_recompute_the_busiest_steps_prefilled_most():
    fleet = make_fleet().assign(recompute_tokens=0)
    fleet.loc[fleet["replica"] == 1, "prefill_tokens"] += 10_000
    few = busiest_steps(fleet, count=20)
    assert set(few["replica"]) == {1}
    assert len(busiest_steps(fleet.head(5), count=20)) <= 5


def test_steps_of_several_replicas_are_refused():
    with pytest.raises(ValueError, match="select one"):
        plot_step_composition(make_fleet())


def test_a_run_without_steps_draws_empty_axes():
    assert plot_step_composition(make_steps().iloc[:0]).get_ylabel() == "tokens in step"


def test_a_largest_step_far_above_the_mean_is_named_and_leaves_the_mean_its_height():
    steps = make_steps(20_000).assign(prefill_tokens=0, recompute_tokens=0)
    steps.loc[7, "prefill_tokens"] = 6000
    ax = plot_step_composition(steps)
    largest = 6000 + steps.loc[7, "decode_tokens"]
    assert [text.get_text() for text in ax.texts] == [f"largest step {largest:,} ↑"]
    assert ax.get_ylim()[1] < 100
