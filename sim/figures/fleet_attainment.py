"""Attainment over fleet size: how many GPUs keep the promise at a rate, and how sharply fewer break it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sim.figures.style import MUTED, axes_for, colours, legend_above, styled


@styled
def plot_fleet_attainment(
    fleets: pd.DataFrame, ax: Axes | Figure | None = None, *, target: float = 0.99
) -> Axes:
    """Draw the share of requests within the SLO over the GPUs of the fleet, one colour a candidate.

    `fleets` has a row for each fleet: `candidate`, `gpus`, `attainment` (0..1), the ends of its confidence
    interval, `attainment_low` and `attainment_high` (NaN: one run, drawn hollow), and `role`; the fleet of
    role `answer`, the smallest that keeps the promise, is ringed. The y axis is not truncated.
    """
    ax = axes_for(ax)
    labels = sorted(set(fleets["candidate"]))
    ax.axhline(target, color=MUTED, lw=0.8, zorder=1)
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = fleets[fleets["candidate"].eq(label) & fleets["attainment"].notna()].sort_values("gpus")
        gpus, share = rows["gpus"].to_numpy(dtype=np.float64), rows["attainment"].to_numpy(dtype=np.float64)
        low, high = (rows[f"attainment_{end}"].to_numpy(dtype=np.float64) for end in ("low", "high"))
        ax.plot(gpus, share, color=colour, label=label)
        known = np.isfinite(low)
        ax.plot(gpus[known], share[known], "o", color=colour)
        ax.plot(gpus[~known], share[~known], "o", color=colour, mfc="white")
        ax.vlines(gpus[known], low[known], high[known], color=colour, lw=1.0)
        answer = rows["role"].eq("answer").to_numpy()
        ax.plot(gpus[answer], share[answer], "o", ms=10, mfc="none", mec=colour, mew=1.4)
        for x, y in zip(gpus[answer], share[answer], strict=True):
            ax.annotate(
                f"{x:.0f}", (x, y), xytext=(0, -14), textcoords="offset points", ha="center", color=colour
            )
    ax.plot([], [], "o", ms=8, mfc="none", mec=MUTED, label="smallest that keeps it")
    ax.set_ylim(0.0, 1.04)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("GPUs of the fleet")
    ax.set_ylabel("requests within SLO")
    legend_above(ax, 3)
    return ax
