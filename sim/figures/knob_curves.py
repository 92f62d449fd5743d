"""What one knob moves: preemptions, first tokens, gaps between tokens and throughput, over its values."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import BLUE, MUTED, VERMILLION, new_figure, styled, tidy

PANELS = (
    ("preemptions/request", (("preemptions_per_request", "-", BLUE, ""),)),
    ("TTFT (ms)", (("median_ttft_ms", "-", BLUE, "p50"), ("p99_ttft_ms", "--", VERMILLION, "p99"))),
    ("ITL (ms)", (("median_itl_ms", "-", BLUE, "p50"), ("p99_itl_ms", "--", VERMILLION, "p99"))),
    ("output tokens/s", (("output_throughput", "-", BLUE, ""),)),
)


@styled
def plot_knob_curves(sweep: pd.DataFrame, knob: str, figure: Figure | None = None) -> list[Axes]:
    """Draw four panels over the column `knob`, which holds numbers or names; return their Axes.

    `sweep` has a row for each value, with columns named as in `summary.json` (those of `PANELS`), and if
    known the ends of confidence intervals, `…_low` and `…_high`. Names, and numbers that grow by factors,
    are set at equal distances.
    """
    figure = figure or new_figure(height_in=4.0)
    axes = [tidy(ax) for ax in figure.subplots(2, 2, sharex=True).flat]
    numeric = pd.api.types.is_numeric_dtype(sweep[knob])
    table = sweep.sort_values(knob) if numeric else sweep
    values = table[knob].to_numpy()
    even = not numeric or _grows_by_factors(values.astype(np.float64))
    x = np.arange(len(table), dtype=np.float64) if even else values.astype(np.float64)
    for ax, (name, curves) in zip(axes, PANELS, strict=True):
        for column, line, colour, label in curves:
            y = table[column].to_numpy(dtype=np.float64)
            ax.plot(x, y, ls=line, marker="o", color=colour, label=label or None)
            if f"{column}_low" in table:
                low, high = (table[f"{column}_{end}"].to_numpy(dtype=np.float64) for end in ("low", "high"))
                ax.vlines(x, low, high, color=colour, lw=1.0)
        ax.set_ylim(0.0, 1.05 * ax.get_ylim()[1])
        ax.set_ylabel(name)
        if len(curves) > 1:
            ax.legend(loc="best")
        if even:
            ax.set_xticks(x, [f"{value:g}" if numeric else str(value) for value in values])
    for ax in axes[2:]:
        ax.set_xlabel(knob.rpartition(".")[2])
        ax.tick_params(axis="x", labelcolor=MUTED)
    return axes


def _grows_by_factors(values: np.ndarray) -> bool:
    """Whether values lie so far apart that the small ones would fall together on a straight axis."""
    positive = values[values > 0]
    return len(positive) > 2 and float(positive.max() / positive.min()) >= 16.0
