"""F5, tokens/s/GPU against tokens/s/user: what speed for one user costs in output of the fleet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import MUTED, axes_for, colours, legend_above, styled
from sim.values import Floats


@styled
def plot_pareto(
    sweep: pd.DataFrame, ax: Axes | Figure | None = None, *, tpot_slo_s: float | None = None
) -> Axes:
    """Draw each run as a point, one colour a configuration, and the frontier of all of them.

    `sweep` has a row for each run: `tokens_per_s_per_user` (1 / mean TPOT in s), `tokens_per_s_per_gpu`, and
    if known `label`, `point`, a few letters written beside the point (such as TP2), and the ends of a
    confidence interval, `tokens_per_s_per_gpu_low` and `…_high`. `tpot_slo_s` draws the speed that the SLO
    asks for.
    """
    ax = axes_for(ax)
    table = sweep if "label" in sweep else sweep.assign(label="runs")
    labels = list(dict.fromkeys(table["label"]))
    user = table["tokens_per_s_per_user"].to_numpy(dtype=np.float64)
    fleet = table["tokens_per_s_per_gpu"].to_numpy(dtype=np.float64)
    best = frontier(user, fleet)
    ax.plot(user[best], fleet[best], color=MUTED, lw=4.0, alpha=0.25, label="frontier", zorder=1)
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)].sort_values("tokens_per_s_per_user")
        x, y = rows["tokens_per_s_per_user"], rows["tokens_per_s_per_gpu"]
        ax.plot(x, y, "o-", color=colour, label=label)
        if "tokens_per_s_per_gpu_low" in rows:
            low, high = rows["tokens_per_s_per_gpu_low"], rows["tokens_per_s_per_gpu_high"]
            ax.vlines(x, low, high, color=colour, lw=1.0)
    if "point" in table:
        for text, x, y in zip(table["point"], user, fleet, strict=True):
            ax.annotate(str(text), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7, color=MUTED)
    if tpot_slo_s is not None:
        ax.axvline(1.0 / tpot_slo_s, color=MUTED, ls="--", lw=1.0, label=f"TPOT ≤ {tpot_slo_s * 1000:.3g} ms")
    ax.set_xlim(left=0.0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("tokens/s/user (1 / mean TPOT)")
    ax.set_ylabel("output tokens/s/GPU")
    legend_above(ax, 4)
    return ax


def frontier(x: Floats, y: Floats) -> npt.NDArray[np.intp]:
    """Indices, by ascending x, of the points that no other beats in both coordinates."""
    order = np.lexsort((y, x))[::-1]
    highest = np.maximum.accumulate(np.append(-np.inf, y[order]))[:-1]
    return order[y[order] > highest][::-1]
