"""F8, KV timeline: how full the KV cache is, what else of it is cached, and when requests lost theirs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import BLUE, MUTED, VERMILLION, axes_for, colours, columns_of, legend_above, styled
from sim.figures.timeline import (
    column_of,
    draw_curve,
    fleet_curve,
    per_replica,
    shade_warmup,
    step_curve,
    step_spans,
)

PALE, MIDDLE = "#D6EAF6", "#A6CDE6"


@styled
def plot_kv_timeline(
    steps: pd.DataFrame | Mapping[str, pd.DataFrame],
    ax: Axes | Figure | None = None,
    *,
    num_blocks: int | Mapping[str, int] | None = None,
    watermark: float | None = None,
    warmup_s: float = 0.0,
) -> Axes:
    """Draw KV blocks in use and, paler above them, those cached but free; preemptions are ticks on top.

    `num_blocks` is the pool's size for one replica, null block left out: with it the axis is per cent,
    without it blocks. `watermark` (a share of the pool kept free at admission) is drawn as a line. A fleet
    gets one panel for each replica. Long runs are a mean line with a band from the lowest to the highest
    value. `steps` may map labels of runs to their tables (and `num_blocks` likewise): then each run is a
    colour, only blocks in use are drawn, over the whole of its fleet, and every run has a row of ticks.
    Returns the Axes (of a fleet the topmost).
    """
    if isinstance(steps, Mapping):
        return _overlay(steps, axes_for(ax), num_blocks, warmup_s)
    pool = num_blocks if isinstance(num_blocks, int) else None
    total = int(steps["num_preemptions"].sum())
    most = (steps["kv_used_blocks"] + steps["kv_cached_blocks"]).to_numpy().max(initial=1)
    full = 100.0 if pool else float(most)
    scale = 100.0 / pool if pool else 1.0

    def draw(rows: pd.DataFrame, ax: Axes) -> None:
        used = rows["kv_used_blocks"].to_numpy(dtype=np.float64) * scale
        held = used + rows["kv_cached_blocks"].to_numpy(dtype=np.float64) * scale
        for values, line, area, label in ((held, PALE, PALE, "cached, free"), (used, BLUE, MIDDLE, "used")):
            x, y = step_curve(rows, values)
            x, y = draw_curve(ax, x, y, colour=line, label="" if line == PALE else label, band=line == BLUE)
            ax.fill_between(
                x, y, step="post", color=area, lw=0, zorder=0.5, label=label if line == PALE else None
            )
        if len(rows):
            _ticks(rows, ax, full * 1.03, full * 1.10, VERMILLION, f"preemptions ({total:,})")
        if watermark is not None:
            ax.axhline(
                full * (1.0 - watermark), color=MUTED, ls="--", lw=1.0, label=f"watermark {watermark:.0%}"
            )
        ax.set_ylim(0.0, full * 1.12)
        ax.margins(x=0.01)
        shade_warmup(ax, warmup_s)

    return per_replica(steps, ax, draw, "KV blocks (%)" if pool else "KV blocks")


def _overlay(
    runs: Mapping[str, pd.DataFrame], ax: Axes, num_blocks: int | Mapping[str, int] | None, warmup_s: float
) -> Axes:
    pools = {
        label: num_blocks.get(label) if isinstance(num_blocks, Mapping) else num_blocks for label in runs
    }
    percent = all(pools.values())
    most = max((steps["kv_used_blocks"].max() for steps in runs.values() if len(steps)), default=1)
    full, bottom = (100.0 if percent else float(most)), 1.03
    for (label, steps), colour in zip(runs.items(), colours(len(runs)), strict=True):
        x, y = fleet_curve(steps, "kv_used_blocks")
        pool, replicas = pools[label], max(1, len(steps["replica"].unique()))
        scale = 100.0 / (pool * replicas) if percent and pool else 1.0
        draw_curve(ax, x, y * scale, colour=colour, label=label, band=len(runs) <= 2)
        if steps["num_preemptions"].any():
            count = int(steps["num_preemptions"].sum())
            _ticks(steps, ax, full * bottom, full * (bottom + 0.05), colour, f"{count:,} preemptions")
            bottom += 0.07
    ax.set_ylim(0.0, full * (bottom + 0.02))
    ax.margins(x=0.01)
    shade_warmup(ax, warmup_s)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("KV blocks in use (%)" if percent else "KV blocks in use")
    legend_above(ax, 4)
    return ax


def _ticks(rows: pd.DataFrame, ax: Axes, low: float, high: float, colour: str, label: str) -> None:
    """One tick for every pixel column in which a step preempted."""
    count = rows["num_preemptions"].to_numpy()
    start_s, _ = step_spans(rows)
    at = np.sort(start_s[count > 0])
    if len(at):
        column = column_of(at, float(start_s.min()), float(start_s.max()), columns_of(ax))
        seen = np.unique(column, return_index=True)[1]
        ax.vlines(at[seen], low, high, color=colour, lw=0.8, label=label)
