"""F8, KV timeline: how full the KV cache is, what else of it is cached, and when requests lost theirs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.envelope import column_of, envelope
from sim.figures.style import BLUE, MUTED, VERMILLION, columns_of, styled
from sim.figures.timeline import per_replica, shade_warmup, step_curve, step_spans

PALE, MIDDLE = "#D6EAF6", "#A6CDE6"


@styled
def plot_kv_timeline(
    steps: pd.DataFrame,
    ax: Axes | Figure | None = None,
    *,
    num_blocks: int | None = None,
    watermark: float | None = None,
    warmup_s: float = 0.0,
) -> Axes:
    """Draw KV blocks in use and, paler above them, those cached but free; preemptions are ticks on top.

    `num_blocks` is the pool's size for one replica, null block left out: with it the axis is per cent,
    without it blocks. `watermark` (a share of the pool kept free at admission) is drawn as a line. A fleet
    gets one panel for each replica. Long runs are thinned to what a pixel column can show, extremes kept.
    Returns the Axes (of a fleet the topmost).
    """
    total = int(steps["num_preemptions"].sum())
    most = (steps["kv_used_blocks"] + steps["kv_cached_blocks"]).to_numpy().max(initial=1)
    full = 100.0 if num_blocks else float(most)
    scale = 100.0 / num_blocks if num_blocks else 1.0

    def draw(rows: pd.DataFrame, ax: Axes) -> None:
        used = rows["kv_used_blocks"].to_numpy(dtype=np.float64) * scale
        held = used + rows["kv_cached_blocks"].to_numpy(dtype=np.float64) * scale
        x, y = step_curve(rows, held)
        keep = envelope(x, y, columns_of(ax))
        ax.fill_between(x[keep], y[keep], step="post", color=PALE, lw=0, label="cached, free")
        ax.plot(x[keep], y[keep], color=PALE, drawstyle="steps-post")
        x, y = step_curve(rows, used)
        keep = envelope(x, y, columns_of(ax))
        ax.fill_between(x[keep], y[keep], step="post", color=MIDDLE, lw=0)
        ax.plot(x[keep], y[keep], color=BLUE, drawstyle="steps-post", label="used")
        _ticks(rows, ax, full, total)
        if watermark is not None:
            ax.axhline(
                full * (1.0 - watermark), color=MUTED, ls="--", lw=1.0, label=f"watermark {watermark:.0%}"
            )
        ax.set_ylim(0.0, full * 1.12)
        ax.margins(x=0.01)
        shade_warmup(ax, warmup_s)

    return per_replica(steps, ax, draw, "KV blocks (%)" if num_blocks else "KV blocks")


def _ticks(rows: pd.DataFrame, ax: Axes, full: float, total: int) -> None:
    """One tick for every pixel column in which a step preempted; the label has the whole table's count."""
    count = rows["num_preemptions"].to_numpy()
    start_s, _ = step_spans(rows)
    at = start_s[count > 0]
    if len(at):
        seen = np.unique(
            column_of(at, float(start_s[0]), float(start_s[-1]), columns_of(ax)), return_index=True
        )[1]
        ax.vlines(
            at[seen], full * 1.03, full * 1.10, color=VERMILLION, lw=0.8, label=f"preemptions ({total:,})"
        )
