"""F11, SLO heatmap: attainment over two knobs, each cell's number in it, the best cell boxed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sim.figures.style import VERMILLION, axes_for, styled


@styled
def plot_slo_heatmap(
    sweep: pd.DataFrame,
    x: str,
    y: str,
    ax: Axes | Figure | None = None,
    *,
    value: str = "attainment",
    best: tuple[object, object] | None = None,
) -> Axes:
    """Draw the column `value` (a share, 0..1) of `sweep` over the columns `x` and `y`, in per cent.

    The colour scale is always 0–100 %. Cells without a run stay white. The best cell is boxed: the one with
    the values `best` of `x` and `y`, or else the highest, the first in the order of `y`, then `x`. Raises
    ValueError if a cell has two runs.
    """
    ax = axes_for(ax)
    # Not pivot_table, which would average two runs of one cell without a word.
    grid = (
        sweep.pivot(  # noqa: PD010
            index=y, columns=x, values=value
        )
        .sort_index()
        .sort_index(axis=1)
    )
    percent = 100.0 * grid.to_numpy(dtype=np.float64)
    ax.imshow(
        np.ma.masked_invalid(percent), cmap="viridis", vmin=0.0, vmax=100.0, aspect="auto", origin="lower"
    )
    for (row, column), cell in np.ndenumerate(percent):
        if np.isfinite(cell):
            ax.text(
                column,
                row,
                f"{cell:.1f}" if 99 < cell < 100 else f"{cell:.0f}",
                ha="center",
                va="center",
                color="black" if cell > 60 else "white",
            )
    if np.isfinite(percent).any():
        if best is None:
            row, column = np.unravel_index(np.nanargmax(percent), percent.shape)
        else:
            row, column = grid.index.get_loc(best[1]), grid.columns.get_loc(best[0])
        box = (float(column) - 0.5, float(row) - 0.5)
        ax.add_patch(Rectangle(box, 1.0, 1.0, fill=False, edgecolor=VERMILLION, linewidth=2.5, clip_on=False))
    ax.set_xticks(range(grid.shape[1]), [f"{label}" for label in grid.columns])
    ax.set_yticks(range(grid.shape[0]), [f"{label}" for label in grid.index])
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax
