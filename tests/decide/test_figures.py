"""Figures of decisions on fixed tables look as they did when last looked at."""

from __future__ import annotations

from math import nan

import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim.figures.fleet_attainment import plot_fleet_attainment
from sim.figures.paired_differences import plot_paired_differences
from sim.figures.style import RC, blank_figure

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline", style=RC, tolerance=2, savefig_kwargs={"dpi": 80}, deterministic=True
)


@picture
def test_attainment_over_fleet_size() -> Figure:
    """Two candidates; the largest fleet of one was simulated under one seed only."""
    rows = [
        ("h100-sxm TP 1", 2, 0.61, 0.55, 0.67, "near miss"),
        ("h100-sxm TP 1", 3, 0.995, 0.992, 0.998, "answer"),
        ("h100-sxm TP 1", 4, 1.0, nan, nan, ""),
        ("a100-sxm-80gb TP 1", 5, 0.2, 0.1, 0.3, ""),
        ("a100-sxm-80gb TP 1", 6, 0.93, 0.9, 0.96, "near miss"),
        ("a100-sxm-80gb TP 1", 7, 0.994, 0.991, 0.997, "answer"),
    ]
    columns = ["candidate", "gpus", "attainment", "attainment_low", "attainment_high", "role"]
    figure = blank_figure()
    plot_fleet_attainment(pd.DataFrame(rows, columns=columns), figure)
    return figure


@picture
def test_paired_differences_of_two_policies() -> Figure:
    """One change is too large for the axis, one is not shown."""
    rows = [
        ("p99 TTFT (ms)", "reference", nan, nan, nan, None),
        ("p99 TTFT (ms)", "least_computed", -0.25, -0.4, -0.1, "shown"),
        ("p99 TTFT (ms)", "most_blocks_freed", 3.1, 2.0, 4.2, "shown"),
        ("requests/s", "reference", nan, nan, nan, None),
        ("requests/s", "least_computed", 0.01, -0.02, 0.04, "no difference shown"),
        ("requests/s", "most_blocks_freed", -0.1, -0.19, -0.01, "shown alone"),
    ]
    columns = ["metric", "variant", "relative", "relative_low", "relative_high", "verdict"]
    figure = blank_figure()
    plot_paired_differences(pd.DataFrame(rows, columns=columns), figure)
    return figure
