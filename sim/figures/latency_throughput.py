"""F4, latency against throughput: what every further request per second costs those already there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.samples import METRICS
from sim.figures.style import MUTED, axes_for, colours, legend_above, plain_log, styled
from sim.results.metrics import FEW_ABOVE, VLLM_NAMES, is_thin

STATISTICS = (("median", "p50", 50.0, "-"), ("p99", "p99", 99.0, "--"))
THROUGHPUTS = {"request_throughput": "requests/s", "output_throughput": "output tokens/s"}


@styled
def plot_latency_throughput(
    sweep: pd.DataFrame,
    ax: Axes | Figure | None = None,
    *,
    metric: str = "ttft",
    throughput: str = "output_throughput",
    slo_s: float | None = None,
) -> Axes:
    """Draw the median (solid) and the p99 (dashed) of a latency over the throughput achieved, point by point.

    `sweep` has a row for each configuration and load, with columns named as in `summary.json`: `throughput`,
    `median_<metric>_ms`, `p99_<metric>_ms` (`e2e` is `e2el` there), and if known `label`, the load
    `rate_per_s` or `max_concurrency` in whose order the points are joined (else in order of throughput),
    `completed` (a percentile with fewer than 10 samples above is hollow) and the ends of confidence
    intervals, `p99_<metric>_ms_low` and `…_high`. Latency is on a log axis. `slo_s` is drawn as a line.
    """
    ax = axes_for(ax)
    facts = METRICS[metric]
    table = sweep if "label" in sweep else sweep.assign(label="")
    labels = list(dict.fromkeys(table["label"]))
    key = VLLM_NAMES[metric]
    order = next((name for name in ("rate_per_s", "max_concurrency") if name in table), throughput)
    hollow = False
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)].sort_values(order)
        x = rows[throughput].to_numpy(dtype=np.float64)
        for column, name, percent, line in STATISTICS:
            column = f"{column}_{key}_ms"
            if column not in rows:
                continue
            y = rows[column].to_numpy(dtype=np.float64) / 1000.0 * facts.per_second
            said = f"{name} {facts.name}" if labels == [""] else (label if line == "-" else None)
            ax.plot(x, y, ls=line, color=colour, label=said)
            thin = [is_thin(int(n), percent) for n in rows["completed"]] if "completed" in rows else []
            for i in range(len(x)):
                few = bool(thin) and thin[i]
                ax.plot(x[i], y[i], "o", color=colour, mfc="white" if few else colour, zorder=3)
                hollow |= few
            if f"{column}_low" in rows:
                ends = rows[[f"{column}_low", f"{column}_high"]].to_numpy(dtype=np.float64)
                ends = ends * facts.per_second / 1000.0
                ax.vlines(x, ends[:, 0], ends[:, 1], color=colour, lw=1.0)
    if labels != [""]:
        for _, name, _, line in STATISTICS:
            ax.plot([], [], color=MUTED, ls=line, label=name)
    if hollow:
        ax.plot([], [], "o", color=MUTED, mfc="white", label=f"< {FEW_ABOVE} samples above")
    if slo_s is not None:
        ax.axhline(slo_s * facts.per_second, color=MUTED, ls=":", lw=1.0, label=f"SLO {facts.text(slo_s)}")
    if len(table):
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    ax.set_xlim(left=0.0)
    ax.set_xlabel(f"throughput ({THROUGHPUTS.get(throughput, throughput)})")
    ax.set_ylabel(f"{facts.name} ({facts.unit}, log)")
    legend_above(ax, 4)
    return ax
