"""F3, throughput against the rate: where the cluster stops keeping up with what it is offered."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import MUTED, axes_for, colours, legend_above, styled
from sim.values import Floats

KEPT_UP = 0.95
"""A rate is kept up with while at least this share of it is achieved."""


@styled
def plot_saturation(sweep: pd.DataFrame, ax: Axes | Figure | None = None) -> Axes:
    """Draw achieved over offered requests per second with the line on which both are equal.

    `sweep` has a row for each configuration and rate: `rate_per_s`, `request_throughput`, and if known
    `label`, `request_goodput` (dashed), and `request_throughput_low` and `…_high`, the ends of a confidence
    interval. The knee, the highest rate of which 95 % are still achieved, is
    ringed.
    """
    ax = axes_for(ax)
    table = sweep if "label" in sweep else sweep.assign(label="throughput")
    labels = list(dict.fromkeys(table["label"]))
    ringed = False
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)].sort_values("rate_per_s")
        offered = rows["rate_per_s"].to_numpy(dtype=np.float64)
        achieved = rows["request_throughput"].to_numpy(dtype=np.float64)
        ax.plot(offered, achieved, marker="o", color=colour, label=label)
        if "request_goodput" in rows:
            ax.plot(offered, rows["request_goodput"], ls="--", color=colour)
        if "request_throughput_low" in rows:
            ends = rows[["request_throughput_low", "request_throughput_high"]].to_numpy(dtype=np.float64)
            ax.vlines(offered, ends[:, 0], ends[:, 1], color=colour, lw=1.0)
        at = knee(offered, achieved)
        if at is not None:
            ringed = True
            ax.plot(offered[at], achieved[at], "o", ms=9, mfc="none", mec=colour, mew=1.2)
    if "request_goodput" in table:
        ax.plot([], [], color=MUTED, ls="--", label="goodput")
    if ringed:
        ax.plot([], [], "o", ms=9, mfc="none", mec=MUTED, label="knee")
    top = float(table["rate_per_s"].max()) if len(table) else 1.0
    ax.plot([0.0, top], [0.0, top], color=MUTED, lw=0.8, zorder=1)
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("offered rate (req/s)")
    ax.set_ylabel("achieved (req/s)")
    legend_above(ax, 4)
    return ax


def knee(offered: Floats, achieved: Floats) -> int | None:
    """Index of the highest rate before the first that is not kept up with; None if the first is not."""
    behind = np.flatnonzero(achieved < KEPT_UP * offered)
    last = (int(behind[0]) if len(behind) else len(offered)) - 1
    return last if last >= 0 else None
