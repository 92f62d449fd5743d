"""The KV cliff: performance against the number of KV blocks on a fine grid, and where it falls off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.samples import METRICS
from sim.figures.style import MUTED, axes_for, colours, legend_above, plain_log, styled
from sim.results.metrics import FEW_ABOVE, VLLM_NAMES, is_thin

SMALL_STEP = 0.10
"""The steepest place is looked for over at most this relative change of blocks."""


class Fall(NamedTuple):
    """The steepest place: from `blocks` down to `fewer_blocks` the latency grows by `factor`."""

    blocks: float
    fewer_blocks: float
    factor: float


@styled
def plot_kv_cliff(
    sweep: pd.DataFrame, ax: Axes | Figure | None = None, *, metric: str = "ttft", slo_s: float | None = None
) -> Axes:
    """Draw p99 (solid) and median (dotted) of a latency over KV blocks, and name the steepest place.

    `sweep` has a row for each configuration, number of blocks and seed: `kv_blocks`, `p99_<metric>_ms`,
    `median_<metric>_ms` (`e2e` is `e2el` there), and if known `label` and `completed`. Several seeds of one
    point are drawn as their geometric mean with a band from the lowest to the highest. A percentile with
    fewer than 10 samples above it is hollow. Latency is on a log axis.
    """
    ax = axes_for(ax)
    facts = METRICS[metric]
    key = VLLM_NAMES[metric]
    table = sweep if "label" in sweep else sweep.assign(label="")
    labels = list(dict.fromkeys(table["label"]))
    hollow, seeds = False, 1
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)]
        for column, percent, line in ((f"p99_{key}_ms", 99.0, "-"), (f"median_{key}_ms", 50.0, ":")):
            if column not in rows:
                continue
            scaled = pd.Series(np.log(rows[column].to_numpy(dtype=float) * facts.per_second / 1000.0))
            points = scaled.groupby(rows["kv_blocks"].to_numpy()).agg(["mean", "min", "max", "count"])
            x, y = points.index.to_numpy(dtype=np.float64), np.exp(points["mean"].to_numpy(dtype=np.float64))
            seeds = max(seeds, int(points["count"].max()))
            said = (f"p{percent:g} {facts.name}" if labels == [""] else label) if line == "-" else ""
            said = f"p50 {facts.name}" if labels == [""] and line == ":" else said
            ax.plot(x, y, ls=line, color=colour, label=said or None)
            low, high = (
                np.exp(points["min"].to_numpy(dtype=float)),
                np.exp(points["max"].to_numpy(dtype=float)),
            )
            ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
            if line == "-":
                few = is_thin(int(rows["completed"].min()), percent) if "completed" in rows else False
                hollow |= few
                ax.plot(x, y, "o", ms=3, color=colour, mfc="white" if few else colour)
                _name_fall(ax, steepest(x, y), x, y, colour)
    if labels != [""]:
        for name, line in ((f"p99 {facts.name}", "-"), (f"p50 {facts.name}", ":")):
            ax.plot([], [], color=MUTED, ls=line, label=name)
    if seeds > 1:
        ax.fill_between([], [], [], color=MUTED, alpha=0.2, lw=0, label=f"range of {seeds} seeds")
    if hollow:
        ax.plot([], [], "o", ms=3, color=MUTED, mfc="white", label=f"< {FEW_ABOVE} samples above")
    if slo_s is not None:
        ax.axhline(slo_s * facts.per_second, color=MUTED, ls="--", lw=1.0, label=f"SLO {facts.text(slo_s)}")
    if len(table):
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    ax.set_xlabel("KV blocks of a replica")
    ax.set_ylabel(f"{facts.name} ({facts.unit}, log)")
    legend_above(ax, 4)
    return ax


def steepest(blocks: np.ndarray, latency: np.ndarray) -> Fall | None:
    """Where the latency grows most for the fewest blocks less: the pair of grid points at most 10 % apart
    with the largest growth per relative change of blocks. None if there is no such pair or no growth.
    """
    best: Fall | None = None
    for i in range(len(blocks)):
        for j in range(i):
            less = 1.0 - blocks[j] / blocks[i]
            if 0.0 < less <= SMALL_STEP and latency[j] > latency[i] > 0.0:
                found = Fall(float(blocks[i]), float(blocks[j]), float(latency[j] / latency[i]))
                if best is None or _slope(found) > _slope(best):
                    best = found
    return best


def _slope(fall: Fall) -> float:
    return float(np.log(fall.factor) / np.log(fall.blocks / fall.fewer_blocks))


def _name_fall(ax: Axes, fall: Fall | None, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    if fall is None:
        return
    at = {float(blocks): float(height) for blocks, height in zip(x, y, strict=True)}
    less = 100.0 * (1.0 - fall.fewer_blocks / fall.blocks)
    ax.plot(
        [fall.fewer_blocks, fall.blocks],
        [at[fall.fewer_blocks], at[fall.blocks]],
        color=colour,
        lw=3.5,
        alpha=0.45,
        solid_capstyle="round",
    )
    ax.annotate(
        f"×{fall.factor:.2g} for {less:.2g} % fewer",
        (fall.blocks, np.sqrt(at[fall.fewer_blocks] * at[fall.blocks])),
        xytext=(6, 4),
        textcoords="offset points",
        color=colour,
        fontsize=7.5,
    )
