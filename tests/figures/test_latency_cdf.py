"""F1 tells the truth about its sample."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from sim.figures import plot_latency_cdf, plot_latency_panels
from sim.figures.latency_cdf import cdf_points
from sim.figures.samples import latency_s
from tests.figures.helpers import make_requests


def curves(ax: Axes) -> list:
    return [line for line in ax.lines if line.get_drawstyle().startswith("steps")]


def marks(ax: Axes) -> dict[float, str]:
    """Height and fill of each percentile mark."""
    dots = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return {round(float(d.get_ydata()[0]), 4): d.get_markerfacecolor() for d in dots}


def test_the_curve_is_the_sorted_sample():
    sample = [0.3, 0.1, 0.2, 0.2]
    (curve,) = curves(plot_latency_cdf(sample))
    assert curve.get_xdata().tolist() == [0.1, 0.1, 0.2, 0.2, 0.3]
    assert curve.get_ydata().tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_tail_is_the_share_at_least_so_slow():
    (curve,) = curves(plot_latency_cdf([0.3, 0.1, 0.2, 0.4], tail=True))
    assert dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True)) == pytest.approx(
        {0.1: 1.0, 0.2: 0.75, 0.3: 0.5, 0.4: 0.25}
    )


def test_definitions_by_hand():
    requests = make_requests(3)
    requests["arrival_s"] = [0.0, 1.0, 2.0]
    requests["first_token_s"] = [0.5, 1.25, 2.0]
    requests["last_token_s"] = [2.5, 1.25, 4.0]
    requests["output_tokens"] = [5, 1, 3]
    assert latency_s(requests, "ttft").tolist() == [0.5, 0.25, 0.0]
    assert latency_s(requests, "e2e").tolist() == [2.5, 0.25, 2.0]
    assert latency_s(requests, "tpot").tolist() == [0.5, 1.0]  # one output token: no time per further token
    with pytest.raises(ValueError, match="no metric 'itl'"):
        latency_s(requests, "itl")


def test_tpot_is_drawn_in_milliseconds():
    ax = plot_latency_cdf([0.010, 0.020], metric="tpot")
    assert curves(ax)[0].get_xdata().tolist() == [10.0, 10.0, 20.0]
    assert ax.get_xlabel() == "TPOT (ms)"


def test_ttft_is_on_a_log_axis_unless_a_value_is_zero():
    assert plot_latency_cdf([0.1, 0.2]).get_xscale() == "log"
    assert plot_latency_cdf([0.0, 0.2]).get_xscale() == "linear"


def test_unfinished_requests_are_left_out_and_counted():
    ax = plot_latency_cdf({"a": make_requests(50, unfinished=7)})
    assert len(curves(ax)[0].get_xdata()) == 43 + 1
    assert "a (n=43, 7 unfinished)" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(("n", "hollow"), [(99, [0.9, 0.99]), (100, [0.99]), (999, [0.99]), (1000, [])])
def test_a_percentile_with_fewer_than_ten_samples_above_is_hollow(n, hollow):
    ax = plot_latency_cdf(np.linspace(1.0, 2.0, n))
    assert [q for q, fill in marks(ax).items() if fill == "white"] == hollow
    said = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ("< 10 samples above" in said) == bool(hollow)


def test_the_slo_lines_are_those_of_this_metric():
    ax = plot_latency_cdf([0.1, 0.2], metric="tpot", slo={"ttft_p99": 1.0, "tpot_p90": 0.04, "e2e": 3.0})
    assert [text.get_text() for text in ax.texts] == ["SLO p90 ≤ 40 ms"]


def test_a_limit_far_beyond_the_slowest_is_named_and_leaves_the_curve_its_width():
    ax = plot_latency_cdf([0.01, 0.02], metric="tpot", slo={"tpot_p99": 0.2})
    assert [text.get_text() for text in ax.texts] == ["SLO p99 ≤ 200 ms →"]
    assert ax.get_xlim()[1] < 25.0


def test_thinning_keeps_exact_points_and_the_whole_tail():
    sample = np.random.default_rng(1).lognormal(size=100_000)
    x, share = cdf_points(sample)
    ordered = np.sort(sample)
    assert len(x) <= 2000
    assert np.array_equal(ordered[np.round(share * len(sample)).astype(int) - 1], x)
    assert np.array_equal(x[-500:], ordered[-500:])
    assert np.max(np.diff(share, prepend=0.0)) < 1e-3


def test_simulated_is_dashed_and_measured_solid_in_one_colour():
    ax = plot_latency_cdf(make_requests(20), measured=make_requests(20, slow=2.0))
    simulated, measured = curves(ax)
    assert (simulated.get_linestyle(), measured.get_linestyle()) == ("--", "-")
    assert simulated.get_color() == measured.get_color()


def test_configurations_differ_in_colour_not_in_line():
    ax = plot_latency_cdf({"a": make_requests(20), "b": make_requests(20, slow=2.0)})
    one, other = curves(ax)
    assert one.get_color() != other.get_color()
    assert one.get_linestyle() == other.get_linestyle() == "-"


def test_an_empty_table_draws_no_curve_but_says_so():
    ax = plot_latency_cdf({"a": make_requests(5, unfinished=5)})
    assert not marks(ax)
    assert "a (n=0, 5 unfinished)" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_panels_hold_each_metric_and_its_tail():
    axes = plot_latency_panels(make_requests(50))
    assert [ax.get_xlabel() for ax in axes[3:]] == ["TTFT (s, log)", "TPOT (ms)", "E2E (s)"]
    assert [ax.get_yscale() for ax in axes] == ["linear"] * 3 + ["log"] * 3
