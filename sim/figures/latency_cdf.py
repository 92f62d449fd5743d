"""F1, latency CDFs: what share of requests waited at most so long, with the SLO and, on request, the tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from sim.figures.samples import METRICS, Metric, latency_s, missing
from sim.figures.style import MUTED, axes_for, colours, legend_above, new_figure, plain_log, styled, tidy
from sim.results.metrics import FEW_ABOVE, is_thin
from sim.values import Floats

Samples = pd.DataFrame | Sequence[float] | Floats

MARKED = (50, 90, 99)
"""Percentiles marked on each curve."""
POINTS = 2000
FAR = 2.5
"""A limit beyond so many times the slowest request is named but not drawn: it would flatten the curves."""


@styled
def plot_latency_cdf(
    requests: Samples | Mapping[str, Samples],
    ax: Axes | Figure | None = None,
    *,
    metric: str = "ttft",
    slo: Mapping[str, float] | None = None,
    measured: Samples | Mapping[str, Samples] | None = None,
    tail: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw the cumulative distribution of one latency metric and return the Axes.

    `requests` is a table with the columns of `requests.csv`, or samples of the metric in seconds, or a
    mapping from a configuration's label to either: a colour each. `measured` takes the same shapes and is
    drawn solid in the colour of the same label, the simulated curve dashed. p50, p90 and p99 (interpolated as
    numpy does) are marked, hollow where fewer than 10 samples lie above. `slo` holds limits in seconds by
    `<metric>_p<percentile>` or `<metric>`; those of this metric are drawn. `tail` draws the share of requests
    at least so slow, on a log axis, instead.
    """
    ax = axes_for(ax)
    facts = METRICS[metric]
    simulated, real = _labelled(requests, "simulated"), _labelled(measured, "measured")
    labels = list(dict.fromkeys([*simulated, *real]))
    colour = dict(zip(labels, colours(len(labels)), strict=True))
    if labels == ["simulated", "measured"]:
        colour["measured"] = colour["simulated"]
    hollow = [
        _draw(ax, metric, label, table, colour[label], "--" if real else "-", tail)
        for label, table in simulated.items()
    ]
    hollow += [_draw(ax, metric, label, table, colour[label], "-", tail) for label, table in real.items()]
    _axes(ax, facts, tail)
    for key, limit_s in (slo or {}).items():
        _limit(ax, facts, metric, key, limit_s, tail)
    if any(hollow):
        ax.plot([], [], "o", color=MUTED, mfc="white", label=f"< {FEW_ABOVE} samples above")
    if legend and ax.get_legend_handles_labels()[0]:
        legend_above(ax, 2)
    return ax


@styled
def plot_latency_panels(
    requests: Samples | Mapping[str, Samples],
    figure: Figure | None = None,
    *,
    slo: Mapping[str, float] | None = None,
    measured: Samples | Mapping[str, Samples] | None = None,
    metrics: Sequence[str] = ("ttft", "tpot", "e2e"),
    tail: bool = True,
) -> list[Axes]:
    """Draw `plot_latency_cdf` of several metrics side by side, tails below; return all Axes, row by row."""
    rows = 2 if tail else 1
    figure = figure or new_figure(3.1 * len(metrics), 2.5 * rows)
    grid = figure.subplots(rows, len(metrics), squeeze=False, sharex="col")
    axes = [tidy(ax) for ax in grid.flat]
    for column, metric in enumerate(metrics):
        for row in range(rows):
            ax = grid[row, column]
            plot_latency_cdf(
                requests, ax, metric=metric, slo=slo, measured=measured, tail=row == 1, legend=False
            )
            if column:
                ax.set_ylabel("")
            if row + 1 < rows:
                ax.set_xlabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    return axes


def cdf_points(samples_s: Floats) -> tuple[Floats, Floats]:
    """The sorted sample and the share of requests at or below each value, thinned to what can be told apart.

    Up to 2,000 values all are kept. Beyond, evenly spaced ranks (each step below a pixel's height) and the
    slowest 500, which a log tail shows one by one.
    """
    x = np.sort(samples_s)
    rank = np.arange(1, len(x) + 1)
    if len(x) > POINTS:
        even = np.linspace(0, len(x) - 1, POINTS - 500).astype(np.intp)
        keep = np.union1d(even, np.arange(len(x) - 500, len(x)))
        x, rank = x[keep], rank[keep]
    return x, rank / len(samples_s)


def _labelled(tables: Samples | Mapping[str, Samples] | None, label: str) -> Mapping[str, Samples]:
    if tables is None:
        return {}
    return tables if isinstance(tables, Mapping) else {label: tables}


def _draw(ax: Axes, metric: str, label: str, table: Samples, colour: str, line: str, tail: bool) -> bool:
    """Draw one curve with its marks; say whether any mark is hollow."""
    per_second = METRICS[metric].per_second
    if isinstance(table, pd.DataFrame):
        values, left_out = latency_s(table, metric), missing(table)
    else:
        values, left_out = np.asarray(table, dtype=np.float64), 0
    values = values[np.isfinite(values)]
    count = f"n={len(values):,}" + (f", {left_out:,} unfinished" if left_out else "")
    if not len(values):
        ax.plot([], [], color=colour, ls=line, label=f"{label} ({count})")
        return False
    x, share = cdf_points(values)
    y = share if not tail else 1.0 - share + 1.0 / len(values)
    x, style = x * per_second, "steps-pre" if tail else "steps-post"
    if not tail:
        x, y = np.append(x[:1], x), np.append(0.0, y)
    ax.plot(x, y, color=colour, ls=line, drawstyle=style, label=f"{label} ({count})")
    hollow = False
    for percent in MARKED:
        few, q = is_thin(len(values), percent), percent / 100.0
        hollow |= few
        at = float(np.percentile(values, percent)) * per_second
        ax.plot(at, 1.0 - q if tail else q, "o", color=colour, mfc="white" if few else colour, zorder=3)
    return hollow


def _axes(ax: Axes, facts: Metric, tail: bool) -> None:
    ax.set_xlabel(facts.label)
    if facts.log and all(np.min(line.get_xdata(orig=False), initial=np.inf) > 0 for line in ax.lines):
        ax.set_xscale("log")
        plain_log(ax.xaxis)
        ax.set_xlabel(f"{facts.name} ({facts.unit}, log)")
    if tail:
        ax.set_yscale("log")
        empty = not any(np.size(line.get_xdata()) for line in ax.lines)
        ax.set_ylim(0.001 if empty else None, 1.15)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        ax.set_ylabel("requests at least so slow")
    else:
        ax.set_ylim(0.0, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        ax.set_ylabel("requests")


def _limit(ax: Axes, facts: Metric, metric: str, key: str, limit_s: float, tail: bool) -> None:
    """The dashed line of one SLO, if it is one of this metric, and a hairline at its percentile."""
    name, _, percentile = key.partition("_p")
    if name != metric:
        return
    at = limit_s * facts.per_second
    said = f"SLO {f'p{percentile} ' if percentile else ''}≤ {facts.text(limit_s)}"
    slowest = max((np.max(line.get_xdata(orig=False), initial=0.0) for line in ax.lines), default=0.0)
    if ax.get_xscale() == "linear" and 0.0 < FAR * slowest < at:
        height, va = (0.98, "top") if tail else (0.02, "bottom")
        ax.text(
            0.99, height, f"{said} →", transform=ax.transAxes, ha="right", va=va, color=MUTED, fontsize=7.5
        )
        return
    ax.axvline(at, color=MUTED, ls="--", lw=1.0, zorder=1)
    if percentile:
        q = float(percentile) / 100.0
        ax.axhline(1.0 - q if tail else q, color=MUTED, lw=0.5, zorder=1)
    ax.annotate(
        said,
        xy=(at, 0.02),
        xycoords=ax.get_xaxis_transform(),
        xytext=(-1, 0),
        textcoords="offset points",
        ha="right",
        va="bottom",
        rotation=90,
        color=MUTED,
        fontsize=7.5,
    )
