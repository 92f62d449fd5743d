"""What every timeline shares: when a step began and ended, one panel for each replica, the shaded warm-up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import MUTED, TIGHT, axes_for, figure_of, legend_above, panels_for

Floats = npt.NDArray[np.float64]

MAX_PANELS = 12
"""A fleet of more replicas is shown by this many, evenly chosen, and the figure says so."""

ROUNDING_S = 1e-7
"""Gaps up to this come from times rounded to the nanosecond, not from an engine that idled."""


def step_spans(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """Start and end of every step in seconds. A row's `t_s` is when its step ended."""
    end_s = steps["t_s"].to_numpy(dtype=np.float64)
    return end_s - steps["step_time_s"].to_numpy(dtype=np.float64), end_s


def step_curve(steps: pd.DataFrame, values: Floats, idle: float | None = None) -> tuple[Floats, Floats]:
    """Points of the step function that holds each step's value from its start, for `drawstyle="steps-post"`.

    The last value is held until the last step's end. `idle` is the value between a step's end and a later
    start (None: the value before is held).
    """
    start_s, end_s = step_spans(steps)
    x, y = np.append(start_s, end_s[-1:]), np.append(values, values[-1:])
    if idle is not None and len(values):
        gap = np.flatnonzero(start_s[1:] - end_s[:-1] > ROUNDING_S)
        x, y = np.insert(x, gap + 1, end_s[gap]), np.insert(y, gap + 1, idle)
    return np.maximum.accumulate(x), y


def per_replica(
    steps: pd.DataFrame,
    where: Axes | Figure | None,
    draw: Callable[[pd.DataFrame, Axes], None],
    y_label: str,
    columns: int = 6,
) -> Axes:
    """Draw one replica into one Axes, or a fleet as a panel each; return the top Axes.

    Raises ValueError for a fleet and a single Axes: the caller then selects a replica, or gives a Figure.
    """
    replicas = [int(r) for r in np.unique(steps["replica"].to_numpy())]
    if len(replicas) <= 1:
        ax = axes_for(where)
        draw(steps, ax)
        ax.set_xlabel("time (s)")
        ax.set_ylabel(y_label)
        legend_above(ax, columns)
        return ax
    if isinstance(where, Axes):
        raise ValueError(
            f"the table holds {len(replicas)} replicas, which need a panel each: give a Figure instead of "
            "an Axes, or select one with steps[steps.replica == 0]"
        )
    shown = [
        replicas[i] for i in np.unique(np.linspace(0, len(replicas) - 1, MAX_PANELS).round().astype(int))
    ]
    shown = replicas if len(replicas) <= MAX_PANELS else shown
    axes = panels_for(where, len(shown))
    for ax, replica in zip(axes, shown, strict=True):
        draw(steps[steps["replica"].eq(replica)], ax)
        ax.text(
            1.005, 0.5, f"replica {replica}", transform=ax.transAxes, va="center", rotation=270, color=MUTED
        )
    axes[-1].set_xlabel("time (s)")
    figure = figure_of(axes[0])
    figure.supylabel(y_label, fontsize=8.5)
    legend = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if len(shown) < len(replicas):
        legend[f"{len(shown)} of {len(replicas)} replicas"] = axes[0].plot([], [], " ")[0]
    figure.legend(list(legend.values()), list(legend), loc="outside upper left", ncols=columns, **TIGHT)
    return axes[0]


def shade_warmup(ax: Axes, warmup_s: float) -> None:
    """Shade the time before the warm-up's end, which no statistic counts."""
    if warmup_s > 0:
        ax.axvspan(0.0, warmup_s, color="#EFEFEF", zorder=0, lw=0, label="warm-up")
