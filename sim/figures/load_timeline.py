"""F7, load timeline: how many requests run and how many wait, step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import BLUE, MUTED, VERMILLION, axes_for, colours, legend_above, styled
from sim.figures.timeline import draw_curve, fleet_curve, per_replica, shade_warmup, step_curve

CURVES = (("num_running", "running", BLUE, "-"), ("num_waiting", "waiting", VERMILLION, "--"))


@styled
def plot_load_timeline(
    steps: pd.DataFrame | Mapping[str, pd.DataFrame],
    ax: Axes | Figure | None = None,
    *,
    measured: pd.DataFrame | None = None,
    warmup_s: float = 0.0,
) -> Axes:
    """Draw running and waiting requests over time as step functions; a fleet gets one panel for each replica.

    `steps` has the columns of `steps.csv`, or maps labels of runs to such tables: then each run is a colour,
    running solid and waiting dashed, fleets summed up. `measured` (columns `end_s`, `num_running`,
    `num_waiting`, of one engine) is drawn solid and the simulation dashed over it. Between steps, when the
    engine idles, nothing runs. Long runs are a mean line with a band from the lowest to the highest value.
    Returns the Axes (of a fleet the topmost).
    """
    if isinstance(steps, Mapping):
        return _overlay(steps, axes_for(ax), warmup_s)

    def draw(rows: pd.DataFrame, ax: Axes) -> None:
        for column, name, colour, _ in CURVES:
            if measured is not None:
                moments = measured["end_s"].to_numpy(dtype=np.float64)
                values = measured[column].to_numpy(dtype=np.float64)
                draw_curve(ax, moments, values, colour=colour, label=f"{name}, measured", band=False)
            x, y = step_curve(rows, rows[column].to_numpy(dtype=np.float64), idle=0.0)
            line, label = ("-", name) if measured is None else ("--", f"{name}, simulated")
            draw_curve(ax, x, y, colour=colour, line=line, label=label)
        ax.set_ylim(bottom=0)
        ax.margins(x=0.01)
        shade_warmup(ax, warmup_s)

    return per_replica(steps, ax, draw, "requests", columns=6 if measured is None else 2)


def _overlay(runs: Mapping[str, pd.DataFrame], ax: Axes, warmup_s: float) -> Axes:
    for (label, steps), colour in zip(runs.items(), colours(len(runs)), strict=True):
        for column, _, _, line in CURVES:
            x, y = fleet_curve(steps, column, idle=0.0)
            name = label if line == "-" else ""
            draw_curve(ax, x, y, colour=colour, line=line, label=name, band=len(runs) <= 2)
    for _, name, _, line in CURVES:
        ax.plot([], [], color=MUTED, ls=line, label=name)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    shade_warmup(ax, warmup_s)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests")
    legend_above(ax, 4)
    return ax
