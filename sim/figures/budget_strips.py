"""Why gaps between tokens follow the token budget: steps of two budgets seen closely, and ITL beside."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.step_composition import plot_step_composition
from sim.figures.style import BLUE, VERMILLION, new_figure, styled, tidy
from sim.figures.timeline import busiest_steps
from sim.values import Floats

BINS = 60
STEPS = 40


@styled
def plot_budget_strips(runs: Mapping[int, pd.DataFrame], figure: Figure | None = None) -> list[Axes]:
    """Draw, for each token budget, a close-up of steps and, at the right, how long tokens had to wait.

    `runs` maps each budget in tokens to the table of steps of its run. The close-up is of the steps that
    prefilled most. In the histogram every step counts once for each token that was decoded in it, since all
    these waited as long as it took. Axes of one kind are shared. Returns the Axes, row by row.
    """
    figure = figure or new_figure(height_in=1.8 * len(runs))
    grid = figure.subplots(len(runs), 2, squeeze=False, sharex="col", width_ratios=(2, 1))
    longest = max(float(np.quantile(_gaps_ms(steps)[0], 0.999)) for steps in runs.values())
    spans = {budget: busiest_steps(steps, count=STEPS) for budget, steps in runs.items()}
    width_s = min(float(_end(few) - _begin(few)) for few in spans.values())
    found: list[Axes] = []
    for (budget, steps), (left, right), colour in zip(
        runs.items(), grid, (BLUE, VERMILLION, *[BLUE] * len(runs)), strict=False
    ):
        few = spans[budget]
        start_s = _begin(few)
        close = few.assign(end_s=few["end_s"] - start_s)
        plot_step_composition(close, left, t0=0.0, t1=width_s, token_budget=budget)
        left.set_xlim(0.0, width_s)
        _histogram(tidy(right), *_gaps_ms(steps), longest, colour)
        found += [left, right]
    for ax in grid[:-1].flat:
        ax.set_xlabel("")
    grid[-1, 0].set_xlabel("time (s)")
    grid[-1, 1].set_xlabel("ITL (ms)")
    return found


def _begin(few: pd.DataFrame) -> float:
    return float(few["end_s"].iloc[0] - few["step_time_s"].iloc[0])


def _end(few: pd.DataFrame) -> float:
    return float(few["end_s"].iloc[-1])


def _gaps_ms(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """Times of steps that decoded, in ms, and how many tokens each gave."""
    decoding = steps[steps["decode_tokens"] > 0]
    times = decoding["step_time_s"].to_numpy(dtype=np.float64) * 1000.0
    return times, decoding["decode_tokens"].to_numpy(dtype=np.float64)


def _histogram(ax: Axes, times_ms: Floats, tokens: Floats, longest_ms: float, colour: str) -> None:
    shares = 100.0 * tokens / tokens.sum()
    ax.hist(times_ms, bins=BINS, range=(0.0, longest_ms), weights=shares, color=colour)
    order = np.argsort(times_ms, kind="stable")
    rank = int(np.searchsorted(np.cumsum(shares[order]), 99.0))
    p99 = float(times_ms[order][min(rank, len(order) - 1)])
    ax.axvline(p99, color=colour, ls="--", lw=1.0)
    ax.text(1.0, 1.02, f"p99 {p99:.3g} ms", transform=ax.transAxes, ha="right", va="bottom", color=colour)
    ax.set_yscale("log")
    ax.set_ylabel("tokens (%, log)")
