"""What timelines share: when steps began and ended, curves of a million steps, and what to show closely.

A fleet gets a panel for each replica, and the warm-up is shaded.

A curve of more steps than a figure has pixels is drawn as its mean over equal stretches of time, with a pale
band from the lowest to the highest value in each: no spike is lost, and the line says how it mostly was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import MUTED, axes_for, columns_of, figure_legend, figure_of, legend_above, panels_for
from sim.results.run_tables import last_moment, request_ends
from sim.values import Floats

Indices = npt.NDArray[np.intp]

MAX_PANELS = 12
"""A fleet of more replicas is shown by this many, evenly chosen, and the figure says so."""

ROUNDING_S = 1e-7
"""Gaps up to this come from times rounded to the nanosecond, not from an engine that idled."""

PIXELS_A_STRETCH = 4
"""How wide a stretch is of which a long curve shows the mean."""

MINUTE_S = 60.0
CLOSE_S = 3.0
"""The stretch in which preemptions are counted to find where they are densest."""


def step_spans(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """Start and end of every step in seconds. A row's `end_s` is when its step ended."""
    end_s = steps["end_s"].to_numpy(dtype=np.float64)
    return end_s - steps["step_time_s"].to_numpy(dtype=np.float64), end_s


def step_curve(steps: pd.DataFrame, values: Floats, idle: float | None = None) -> tuple[Floats, Floats]:
    """Points of the step function that holds each step's value from its start, for `drawstyle="steps-post"`.

    The last value is held until the last step's end. `idle` is the value between a step's end and a later
    start (None: the value before is held).
    """
    start_s, end_s = step_spans(steps)
    x, y = np.append(start_s, end_s[-1:]), np.append(values, values[-1:])
    if idle is not None and len(values):
        gap = np.flatnonzero(start_s[1:] - end_s[:-1] > ROUNDING_S)
        x, y = np.insert(x, gap + 1, end_s[gap]), np.insert(y, gap + 1, idle)
    return np.maximum.accumulate(x), y


def fleet_curve(steps: pd.DataFrame, column: str, idle: float | None = None) -> tuple[Floats, Floats]:
    """Points of the sum of `step_curve` over all replicas; a replica counts 0 before and after its steps."""
    moments, changes = [], []
    for replica in np.unique(steps["replica"].to_numpy()):
        rows = steps[steps["replica"].eq(int(replica))]
        x, y = step_curve(rows, rows[column].to_numpy(dtype=np.float64), idle)
        moments.append(x)
        changes.append(np.append(np.diff(y[:-1], prepend=0.0), -y[-1]))
    if not moments:
        return np.empty(0), np.empty(0)
    x, change = np.concatenate(moments), np.concatenate(changes)
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.cumsum(change[order])
    last = np.append(x[1:] > x[:-1], True)
    y = np.where(np.abs(y) < 1e-9, 0.0, y)
    return x[last], y[last]


def stretches(x: Floats, y: Floats, edges: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean over time, lowest and highest value of a step function between each two edges.

    `x` ascends; the function is y[i] from x[i] up to x[i + 1], and keeps its first and last value outside.
    """
    area = np.concatenate(([0.0], np.cumsum(y[:-1] * np.diff(x))))
    before, after = np.minimum(edges - x[0], 0.0) * y[0], np.maximum(edges - x[-1], 0.0) * y[-1]
    mean = np.diff(np.interp(edges, x, area) + before + after) / np.diff(edges)
    at_edge = np.clip(np.searchsorted(x, edges[:-1], side="right") - 1, 0, None)
    low, high = y[at_edge].copy(), y[at_edge].copy()
    place = np.searchsorted(edges, x, side="right") - 1
    inside = (place >= 0) & (place < len(low))
    np.minimum.at(low, place[inside], y[inside])
    np.maximum.at(high, place[inside], y[inside])
    return np.clip(mean, low, high), low, high


def draw_curve(
    ax: Axes, x: Floats, y: Floats, *, colour: str, label: str, line: str = "-", band: bool = True
) -> tuple[Floats, Floats]:
    """Draw a step function whole, or if it has more points than can be told apart its mean and its band.

    Returns the points of the line drawn, so that an area can be laid below it.
    """
    columns = columns_of(ax)
    if len(x) > 2 * columns:
        edges = np.linspace(x[0], x[-1], columns // PIXELS_A_STRETCH + 1)
        mean, low, high = stretches(x, y, edges)
        x = edges
        if band:
            low, high = np.append(low, low[-1]), np.append(high, high[-1])
            ax.fill_between(x, low, high, step="post", color=colour, alpha=0.25, lw=0)
        y = np.append(mean, mean[-1])
    ax.plot(x, y, color=colour, ls=line, drawstyle="steps-post", label=label)
    return x, y


def column_of(x: Floats, start: float, end: float, columns: int) -> Indices:
    """Which of `columns` equal parts of [start, end] each value of `x` lies in (outside: the nearest)."""
    scale = columns / (end - start) if end > start else 0.0
    return np.clip(((x - start) * scale).astype(np.intp), 0, columns - 1)


def per_replica(
    steps: pd.DataFrame,
    where: Axes | Figure | None,
    draw: Callable[[pd.DataFrame, Axes], None],
    y_label: str,
    columns: int = 6,
) -> Axes:
    """Draw one replica into one Axes, or a fleet as a panel each; return the top Axes.

    Raises ValueError for a fleet and a single Axes: the caller then selects a replica, or gives a Figure.
    """
    replicas = [int(r) for r in np.unique(steps["replica"].to_numpy())]
    if len(replicas) <= 1:
        ax = axes_for(where)
        draw(steps, ax)
        ax.set_xlabel("time (s)")
        ax.set_ylabel(y_label)
        legend_above(ax, columns)
        return ax
    if isinstance(where, Axes):
        raise ValueError(
            f"the table holds {len(replicas)} replicas, which need a panel each: give a Figure instead of "
            "an Axes, or select one with steps[steps.replica == 0]"
        )
    shown = [
        replicas[i] for i in np.unique(np.linspace(0, len(replicas) - 1, MAX_PANELS).round().astype(int))
    ]
    shown = replicas if len(replicas) <= MAX_PANELS else shown
    axes = panels_for(where, len(shown))
    for ax, replica in zip(axes, shown, strict=True):
        draw(steps[steps["replica"].eq(replica)], ax)
        place: dict[str, Any] = {"va": "center", "rotation": 270, "fontsize": 6.5, "color": MUTED}
        ax.text(1.005, 0.5, f"replica {replica}", transform=ax.transAxes, **place)
    axes[-1].set_xlabel("time (s)")
    figure = figure_of(axes[0])
    figure.supylabel(y_label, fontsize=8.5)
    legend: dict[str, Any] = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if len(shown) < len(replicas):
        legend[f"{len(shown)} of {len(replicas)} replicas"] = axes[0].plot([], [], " ")[0]
    figure_legend(figure, legend, columns)
    return axes[0]


def shade_warmup(ax: Axes, warmup_s: float) -> None:
    """Shade the time before the warm-up's end, which no statistic counts."""
    if warmup_s > 0:
        ax.axvspan(0.0, warmup_s, color="#EFEFEF", zorder=0, lw=0, label="warm-up")


def busiest_steps(steps: pd.DataFrame, warmup_s: float = 0.0, count: int = 60) -> pd.DataFrame:
    """The `count` consecutive steps of a replica that recomputed most or, if none did, prefilled most.

    Steps before `warmup_s` are left out if any came after. Of equally busy stretches the first counts.
    """
    after = steps[steps["end_s"] >= warmup_s]
    pool = after if len(after) else steps
    column = "recompute_tokens" if pool["recompute_tokens"].any() else "prefill_tokens"
    best, most = pool.iloc[:0], -1
    for replica in np.unique(pool["replica"].to_numpy()):
        own = pool[pool["replica"].eq(int(replica))]
        total = np.append(0, np.cumsum(own[column].to_numpy()))
        width = min(count, len(own))
        sums = total[width:] - total[:-width]
        if sums.max() > most:
            most, at = int(sums.max()), int(sums.argmax())
            best = own.iloc[at : at + width]
    return best


def worst_minute(steps: pd.DataFrame, warmup_s: float = 0.0) -> tuple[float, float]:
    """Start and end (s) of the worst minute of a run; minutes are counted from `warmup_s`.

    It is the first one with the most preemptions; if there were none, with the most requests waiting; if
    nobody waited, running.
    """
    last_s = float(steps["end_s"].max()) if len(steps) else 0.0
    if last_s <= warmup_s:
        return 0.0, max(last_s, 1.0)
    edges = np.append(np.arange(warmup_s, last_s, MINUTE_S), last_s)
    preemptions = np.histogram(steps["end_s"], bins=edges, weights=steps["num_preemptions"])[0]
    found = preemptions
    for column in ("num_waiting", "num_running"):
        if not found.any() and steps[column].any():
            found = _seconds(steps, column, edges)
    at = int(np.argmax(found))
    return float(edges[at]), float(edges[at + 1])


def _seconds(steps: pd.DataFrame, column: str, edges: Floats) -> Floats:
    """Request-seconds in a state between each two edges, over all replicas."""
    total = np.zeros(len(edges) - 1)
    for replica in np.unique(steps["replica"].to_numpy()):
        rows = steps.loc[steps["replica"].eq(int(replica)), ["end_s", "step_time_s", column]]
        x, y = step_curve(rows, rows[column].to_numpy(dtype=np.float64), idle=0.0)
        y[-1] = 0.0  # its last step has ended
        total += stretches(x, y, edges)[0] * np.diff(edges)
    return total


def close_window(
    requests: pd.DataFrame, steps: pd.DataFrame, warmup_s: float = 0.0, rows: int = 40
) -> tuple[float, float]:
    """The part of the worst minute that `rows` requests fill: from where preemptions are densest, or from its
    begin, until most of the requests then in flight, by arrival, have ended; never longer than the minute.
    """
    start, end = worst_minute(steps, warmup_s)
    within = steps[steps["num_preemptions"].gt(0) & steps["end_s"].between(start, end)]
    if len(within):
        moments, count = within["end_s"].to_numpy(), np.cumsum(within["num_preemptions"].to_numpy())
        until = count[np.searchsorted(moments, moments + CLOSE_S, side="right") - 1]
        densest = int(np.argmax(until - count + within["num_preemptions"].to_numpy()))
        start = max(start, float(moments[densest]) - 1.0)
    table = requests.assign(end_s=request_ends(requests, last_moment(requests)).to_numpy())
    flying = table[table["arrival_s"].lt(end) & table["end_s"].gt(start)].sort_values("arrival_s")
    ends = flying["end_s"].head(rows)
    return start, min(end, max(start + 1.0, float(ends.quantile(0.9)))) if len(ends) else end
