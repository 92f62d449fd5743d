"""Step times: what was measured against what is predicted, by kind of step, before and after a fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import MUTED, colours, figure_legend, new_figure, plain_log, styled

MOST_POINTS = 1500
"""Of a kind of step that has more, every second or third is drawn."""

KINDS = ("decode", "prefill", "decode and prefill", "drafts")


@styled
def plot_step_times(steps: pd.DataFrame, figure: Figure | None = None) -> Axes:
    """Draw predicted over measured step times on logarithmic axes, before a fit and after it.

    `steps` has a row a step: `kind`, `measured_s`, `before_s`, `after_s`. On the line both are the same.
    """
    own = new_figure(7.0, 3.6) if figure is None else figure
    axes = own.subplots(1, 2, sharex=True, sharey=True)
    broad = steps["kind"].map(_broad)
    present = [kind for kind in KINDS if broad.eq(kind).any()]
    low, high = _limits(steps)
    marks = {}
    for ax, column, title in zip(axes, ("before_s", "after_s"), ("before", "fitted"), strict=True):
        ax.plot([low, high], [low, high], color=MUTED, lw=0.8, zorder=3)
        for kind, colour in zip(present, colours(len(present)), strict=True):
            rows = steps[broad.eq(kind)]
            rows = rows.iloc[:: max(1, len(rows) // MOST_POINTS)]
            marks[kind] = ax.plot(
                1e3 * rows["measured_s"], 1e3 * rows[column], ".", ms=2.5, alpha=0.5, color=colour, mew=0
            )[0]
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        for axis in (ax.xaxis, ax.yaxis):
            plain_log(axis)
        ax.set_title(title)
        ax.set_xlabel("measured step time (ms)")
    axes[0].set_ylabel("predicted step time (ms)")
    figure_legend(own, marks)
    first: Axes = axes[0]
    return first


def _broad(kind: str) -> str:
    """The kind without its size."""
    return "drafts" if kind.startswith("drafts") else kind.partition(",")[0]


def _limits(steps: pd.DataFrame) -> tuple[float, float]:
    """Limits of both axes in ms: single steps far beyond all others are cut off."""
    values = steps[["measured_s", "before_s", "after_s"]].to_numpy(dtype=np.float64).ravel()
    low, high = np.percentile(1e3 * values, [0.1, 99.9])
    return 0.85 * float(low), 1.18 * float(high)
