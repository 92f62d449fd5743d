"""Paired differences: by how much each variant moves each metric, and whether that is shown."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from sim.figures.style import MUTED, axes_for, colours, legend_above, styled

FAR = 2.0
"""Changes beyond this share of the reference stand at the edge, with their value beside them."""


@styled
def plot_paired_differences(differences: pd.DataFrame, ax: Axes | Figure | None = None) -> Axes:
    """Draw, for each metric, the change of each variant in per cent of the reference, with its interval.

    `differences` has a row for each metric and variant: `metric`, `variant`, `relative`, `relative_low`,
    `relative_high` (shares of the reference's mean; NaN for the reference itself) and `verdict`. A dot is
    hollow where no difference is shown; metrics without any change to draw are left out.
    """
    ax = axes_for(ax)
    rows = differences[differences["relative"].notna()]
    metrics = list(dict.fromkeys(rows["metric"]))
    variants = list(dict.fromkeys(rows["variant"]))
    ax.axvline(0.0, color=MUTED, lw=0.8, zorder=1)
    height = 0.7 / max(1, len(variants))
    for number, (variant, colour) in enumerate(zip(variants, colours(len(variants) + 1)[1:], strict=True)):
        own = rows[rows["variant"].eq(variant)]
        y = np.array([metrics.index(m) for m in own["metric"]]) + (number - (len(variants) - 1) / 2) * height
        x, low, high = (
            own[c].to_numpy(dtype=np.float64).clip(-FAR, FAR)
            for c in ("relative", "relative_low", "relative_high")
        )
        ax.hlines(y, low, high, color=colour, lw=1.4)
        shown = own["verdict"].isin(["shown", "shown alone", "exact"]).to_numpy()
        ax.plot(x[shown], y[shown], "o", color=colour, label=variant)
        ax.plot(x[~shown], y[~shown], "o", color=colour, mfc="white", label=None if shown.any() else variant)
        change = own["relative"].to_numpy(dtype=np.float64)
        far = np.abs(change) > FAR
        for at, row, value in zip(x[far], y[far], change[far], strict=True):
            ax.annotate(
                f"{100 * value:+.0f} %",
                (at, row),
                xytext=(-6 if at > 0 else 6, 0),
                textcoords="offset points",
                ha="right" if at > 0 else "left",
                va="bottom",
                color=colour,
                fontsize=7.5,
            )
    ax.plot([], [], "o", color=MUTED, mfc="white", label="no difference shown")
    ax.set_yticks(range(len(metrics)), [str(m).partition(" (")[0] for m in metrics])
    ax.set_ylim(len(metrics) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:+.3g} %" if share else "0"))
    ax.set_xlabel("change from the reference (95 % paired interval)")
    legend_above(ax, 3)
    return ax
