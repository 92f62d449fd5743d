"""F6, capacity per dollar: how much traffic within the SLO an hour's money buys on each configuration."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import BLUE, GREEN, MUTED, axes_for, figure_of, styled

NOTE_IN = 1.45
"""Room for the words beside the longest bar."""


@styled
def plot_capacity_cost(
    configurations: pd.DataFrame, ax: Axes | Figure | None = None, *, currency: str = "$"
) -> Axes:
    """Draw a bar for each configuration: requests within the SLO that one unit of money pays for.

    `configurations` has a row each: `label`, `capacity_per_s` (the highest rate that keeps the SLO; NaN or 0
    if none does), `cost_per_h`, and if known the ends of a confidence interval of the capacity,
    `capacity_low` and `capacity_high`. A bar is 3600 capacity / cost, in thousand requests. Most first, and
    that bar is green.
    """
    ax = axes_for(ax)
    table = configurations.assign(
        bought=3.6 * configurations["capacity_per_s"].fillna(0.0) / configurations["cost_per_h"]
    ).sort_values("bought", ascending=False, kind="stable")
    bought = table["bought"].to_numpy(dtype=np.float64)
    row = np.arange(len(table))
    shades = [GREEN if i == 0 and bought[0] > 0 else BLUE for i in row]
    ax.barh(row, bought, 0.65, color=shades)
    ends = bought.copy()
    if "capacity_low" in table:
        low, high = (
            3.6 * table[f"capacity_{end}"].to_numpy(dtype=np.float64) / table["cost_per_h"].to_numpy()
            for end in ("low", "high")
        )
        shown = np.isfinite(low) & np.isfinite(high) & (bought > 0)
        ax.hlines(row[shown], low[shown], high[shown], color="black", lw=1.2)
        ends[shown] = np.maximum(ends, high)[shown]
    for i, (end, rate, cost) in enumerate(
        zip(ends, table["capacity_per_s"], table["cost_per_h"], strict=True)
    ):
        said = f"{rate:.3g} req/s for {cost:.3g} {currency}/h" if bought[i] > 0 else "no rate keeps the SLO"
        ax.annotate(
            said,
            (end, i),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
            fontsize=7.5,
        )
    ax.set_yticks(row, [str(label) for label in table["label"]])
    ax.set_ylim(len(table) - 0.4, -0.6)
    width_in = 0.75 * figure_of(ax).get_figure(root=True).get_figwidth()
    room = width_in / max(0.5, width_in - NOTE_IN)
    ax.set_xlim(0.0, room * float(ends.max(initial=0.0)) or 1.0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"thousand requests within SLO per {currency}")
    return ax
