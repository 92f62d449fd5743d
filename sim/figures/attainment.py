"""F2, SLO attainment against the rate: what traffic keeps the promise, and which part of it breaks first."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sim.figures.style import MUTED, axes_for, colours, legend_above, styled
from sim.values import Floats

LINES = (
    ("attainment", "-", "all targets"),
    ("ttft_attainment", ":", "TTFT alone"),
    ("tpot_attainment", "--", "TPOT alone"),
)


@styled
def plot_attainment(
    sweep: pd.DataFrame, ax: Axes | Figure | None = None, *, target: float = 0.99, num_gpus: int = 1
) -> Axes:
    """Draw the share of requests that met their SLOs over the offered rate (per GPU if `num_gpus` > 1).

    `sweep` has a row for each configuration and rate: `rate_per_s`, `attainment` (0..1), and if known
    `label`, `ttft_attainment`, `tpot_attainment`, and `attainment_low` and `attainment_high`, the ends of a
    confidence interval. A line falls from the target where each configuration's goodput lies (see
    `highest_rate`); the legend has its value.
    """
    ax = axes_for(ax)
    table = sweep if "label" in sweep else sweep.assign(label="")
    labels = list(dict.fromkeys(table["label"]))
    ax.axhline(target, color=MUTED, lw=0.8, zorder=1)
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)].sort_values("rate_per_s")
        rate = rows["rate_per_s"].to_numpy(dtype=np.float64) / num_gpus
        share = rows["attainment"].to_numpy(dtype=np.float64)
        most = highest_rate(rate, share, target)
        reached = f": goodput {most:.3g}" if np.isfinite(most) else ": no goodput"
        for column, line, name in LINES:
            if column in rows:
                said = name if not label else (f"{label}{reached}" if column == "attainment" else None)
                ax.plot(
                    rate, rows[column], ls=line, color=colour, marker="o" if line == "-" else "", label=said
                )
        if "attainment_low" in rows:
            ends = rows[["attainment_low", "attainment_high"]].to_numpy(dtype=np.float64)
            ax.vlines(rate, ends[:, 0], ends[:, 1], color=colour, lw=1.0)
        if np.isfinite(most):
            ax.vlines(most, 0.0, target, color=colour, lw=0.8)
            if not label:
                ax.plot([], [], color=colour, lw=0.8, label=f"goodput {most:.3g}")
    if labels != [""]:
        for column, line, name in LINES:
            if column in table:
                ax.plot([], [], color=MUTED, ls=line, label=name)
    ax.set_ylim(0.0, 1.04)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ax.set_xlabel("offered rate per GPU (req/s)" if num_gpus > 1 else "offered rate (req/s)")
    ax.set_ylabel("requests within SLO")
    legend_above(ax, 3)
    return ax


def highest_rate(rate: Floats, share: Floats, target: float) -> float:
    """The rate, ascending, up to which the share stays at the target; NaN if the first rate misses it.

    Between the last rate that holds and the first that does not, the share is taken to fall in a straight
    line.
    """
    missed = np.flatnonzero(share < target)
    if not len(missed):
        return float(rate[-1]) if len(rate) else float("nan")
    at = int(missed[0])
    if at == 0:
        return float("nan")
    part = (share[at - 1] - target) / (share[at - 1] - share[at])
    return float(rate[at - 1] + part * (rate[at] - rate[at - 1]))
