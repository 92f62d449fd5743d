"""F9, step composition: what each step was made of, and how long it took."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from sim.figures.style import (
    BLACK,
    DECODE,
    MUTED,
    PREFILL,
    RECOMPUTE,
    axes_for,
    columns_of,
    legend_above,
    limit_line,
    styled,
)
from sim.figures.timeline import PIXELS_A_STRETCH, column_of, step_spans
from sim.values import Floats

LAYERS = (
    ("decode_tokens", "decode", DECODE, ""),
    ("prefill_tokens", "prefill", PREFILL, ""),
    ("recompute_tokens", "recompute", RECOMPUTE, "/////"),
)

FAR = 3
"""A budget, or a largest step, of more than so many times the highest bar is named but not drawn: it would
flatten the bars."""


@styled
def plot_step_composition(
    steps: pd.DataFrame,
    ax: Axes | Figure | None = None,
    *,
    t0: float | None = None,
    t1: float | None = None,
    token_budget: int | None = None,
    step_time: bool = False,
) -> Axes:
    """Draw a bar for every step, as wide as the step took, its decode, prefill and recompute tokens stacked.

    Where steps overlap, in a pipeline, a bar begins when the one before ended. Steps that overlap [t0, t1]
    (seconds; None: no limit) are shown. `token_budget` draws `max_num_batched_tokens` as a line; `step_time`
    adds each step's time on a second axis. Where bars would be narrower than a pixel, they stand for equal
    stretches of time instead and show the mean step in each, before a grey one at the largest. Raises
    ValueError if the table holds several replicas. Returns the Axes.
    """
    if len(steps["replica"].unique()) > 1:
        raise ValueError("steps of several replicas overlap: select one with steps[steps.replica == 0]")
    ax = axes_for(ax)
    start_s, end_s = step_spans(steps)
    start_s = np.maximum(start_s, np.append(-np.inf, end_s[:-1]))
    shown = (end_s > (-np.inf if t0 is None else t0)) & (start_s < (np.inf if t1 is None else t1))
    start_s, end_s = start_s[shown], end_s[shown]
    tokens = np.array([steps[column].to_numpy(dtype=np.float64)[shown] for column, *_ in LAYERS])
    times_s = end_s - start_s
    tallest = float(tokens.sum(axis=0).max(initial=1.0))
    merged = len(start_s) > columns_of(ax)
    beyond: list[str] = []
    if merged:
        start_s, end_s, tokens, times_s, largest = _columns(
            start_s, end_s, tokens, times_s, columns_of(ax) // PIXELS_A_STRETCH
        )
        tallest = float(tokens.sum(axis=0).max(initial=1.0))
        most = float(largest.max(initial=0.0))
        if most <= FAR * tallest:
            _bars(ax, start_s, end_s, np.zeros_like(largest), largest, "#DCDCDC", "", "largest step")
            tallest = most
        else:
            beyond.append(f"largest step {most:,.0f} ↑")
    bottom = np.zeros_like(start_s)
    for height, (_, label, colour, hatch) in zip(tokens, LAYERS, strict=True):
        if height.any():
            _bars(ax, start_s, end_s, bottom, bottom + height, colour, hatch, label)
        bottom = bottom + height
    top = tallest
    if token_budget and token_budget <= FAR * tallest:
        limit_line(ax, token_budget, f"token budget {token_budget:,}")
        top = max(tallest, float(token_budget))
    elif token_budget:
        beyond.append(f"token budget {token_budget:,} ↑")
    if beyond:
        ax.text(
            0.995,
            1.0,
            ", ".join(beyond),
            transform=ax.transAxes,
            ha="right",
            va="top",
            color=MUTED,
            fontsize=7.5,
        )
    if len(start_s):
        ax.set_xlim(start_s[0] if t0 is None else t0, end_s[-1] if t1 is None else t1)
    ax.set_ylim(0.0, 1.1 * top)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("tokens in mean step" if merged else "tokens in step")
    if step_time:
        _step_times(ax, start_s, end_s, times_s)
    legend_above(ax)
    return ax


def _bars(
    ax: Axes, start_s: Floats, end_s: Floats, bottom: Floats, top: Floats, colour: str, hatch: str, label: str
) -> None:
    """One rectangle a step, a hair of white between neighbours wide enough to bear it."""
    corners = np.stack(
        [
            np.stack([start_s, start_s, end_s, end_s], axis=1),
            np.stack([bottom, top, top, bottom], axis=1),
        ],
        axis=2,
    )
    wide = len(start_s) * 5 <= columns_of(ax)
    bars = PolyCollection(
        list(corners[top > bottom]),
        facecolor=colour,
        edgecolor=PREFILL if hatch else "white",
        hatch=hatch or None,
        linewidth=0.4 if wide else 0.0,
        label=label,
    )
    ax.add_collection(bars, autolim=True)


def _columns(
    start_s: Floats, end_s: Floats, tokens: Floats, times_s: Floats, columns: int
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Steps merged into equal stretches of time: span, mean tokens and mean time of a step, largest step."""
    first, last = float(start_s[0]), float(end_s[-1])
    column = column_of(start_s, first, last, columns)
    used, count = np.unique(column, return_counts=True)
    sums = [np.bincount(column, weights=row, minlength=columns)[used] for row in tokens]
    mean: Floats = np.array(sums, dtype=np.float64) / count
    mean_time_s = np.bincount(column, weights=times_s, minlength=columns)[used] / count
    largest = np.zeros(columns)
    np.maximum.at(largest, column, tokens.sum(axis=0))
    edges = np.linspace(first, last, columns + 1)
    return edges[used], edges[used + 1], mean, mean_time_s, largest[used]


def _step_times(ax: Axes, start_s: Floats, end_s: Floats, times_s: Floats) -> None:
    """Each step's time as a black line over its bar, on a second axis."""
    other = ax.twinx()
    other.spines["right"].set_visible(True)
    other.grid(visible=False)
    other.hlines(times_s * 1000.0, start_s, end_s, color=BLACK, lw=1.2)
    other.set_ylabel("step time (ms)")
    other.set_ylim(0.0, 1.2 * float(times_s.max(initial=1e-3)) * 1000.0)
    ax.plot([], [], color=BLACK, lw=1.2, label="step time (right)")
