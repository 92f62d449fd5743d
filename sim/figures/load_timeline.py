"""F7, load timeline: how many requests run and how many wait, step by step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.envelope import envelope
from sim.figures.style import BLUE, VERMILLION, columns_of, styled
from sim.figures.timeline import per_replica, shade_warmup, step_curve

CURVES = (("num_running", "running", BLUE), ("num_waiting", "waiting", VERMILLION))


@styled
def plot_load_timeline(
    steps: pd.DataFrame,
    ax: Axes | Figure | None = None,
    *,
    measured: pd.DataFrame | None = None,
    warmup_s: float = 0.0,
) -> Axes:
    """Draw running and waiting requests over time as step functions; a fleet gets one panel for each replica.

    `steps` has the columns of `steps.csv`; `measured` (columns `t_s`, `num_running`, `num_waiting`, of one
    engine) is drawn solid and the simulation dashed over it. Between steps, when the engine idles, nothing
    runs. Long runs are thinned to what a pixel column can show, extremes kept. Returns the Axes (of a fleet
    the topmost).
    """

    def draw(rows: pd.DataFrame, ax: Axes) -> None:
        for column, label, colour in CURVES:
            if measured is not None:
                ax.plot(
                    measured["t_s"],
                    measured[column],
                    color=colour,
                    drawstyle="steps-post",
                    label=f"{label}, measured",
                )
            x, y = step_curve(rows, rows[column].to_numpy(dtype=np.float64), idle=0.0)
            keep = envelope(x, y, columns_of(ax))
            line, name = ("-", label) if measured is None else ("--", f"{label}, simulated")
            ax.plot(x[keep], y[keep], color=colour, ls=line, drawstyle="steps-post", label=name)
        ax.set_ylim(bottom=0)
        ax.margins(x=0.01)
        shade_warmup(ax, warmup_s)

    return per_replica(steps, ax, draw, "requests", columns=6 if measured is None else 2)
