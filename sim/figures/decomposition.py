"""F13, latency decomposition: what the slow requests waited for, and the quick ones did not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import (
    DECODE,
    GREEN,
    ORANGE,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    SKY,
    STALLED,
    YELLOW,
    axes_for,
    colours,
    legend_above,
    styled,
)

BANDS = (0.0, 50.0, 90.0, 99.0, 100.0)
PART_COLOURS = {
    "queued": QUEUED,
    "prefill": PREFILL,
    "running": DECODE,
    "front end": "#E6E6E6",
    "steps under way": QUEUED,
    "held back": "#9A9A9A",
    "token budget": YELLOW,
    "KV blocks": GREEN,
    "sequence slots": "#4D4D4D",
    "own prefill": PREFILL,
    "others' prefills": ORANGE,
    "own decode": DECODE,
    "decode": DECODE,
    "others' decodes": SKY,
    "recompute": RECOMPUTE,
    "preempted": STALLED,
    "host": "#8C6D46",
    "other": "#F4F4F4",
}
"""Colours of parts by name: greys and strong colours wait, blues decode, reds prefill."""

LEAST_SHARE = 0.01
"""Parts that are less than this of every band are drawn together as `other`."""


@styled
def plot_decomposition(
    parts: pd.DataFrame, ax: Axes | Figure | None = None, *, bands: Sequence[float] = BANDS, unit: str = "s"
) -> Axes:
    """Draw the mean of each part of a latency, stacked, for the requests within each band of percentiles.

    `parts` has a row for each request and a column for each part (s), as `latency_parts` gives; their sum is
    the latency by which requests are ranked. Bands are read (low, high]; each label has the number of
    requests.
    """
    ranked = parts.iloc[np.argsort(parts.sum(axis=1).to_numpy(), kind="stable")]
    edges = np.round(np.asarray(bands) / 100.0 * len(ranked)).astype(int)
    groups = [ranked.iloc[low:high] for low, high in pairwise(edges)]
    means = pd.DataFrame(
        [group.mean() if len(group) else 0.0 * group.sum() for group in groups],
        index=[f"p{low:g}–p{high:g}" for low, high in pairwise(bands)],
    )
    return plot_bands(means, [len(group) for group in groups], ax, unit=unit)


@styled
def plot_bands(
    means: pd.DataFrame,
    sizes: Sequence[int],
    ax: Axes | Figure | None = None,
    *,
    unit: str = "s",
    shares: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw stacked bars, one for each row of `means`: columns are parts, the index names the bands.

    `sizes`: how many latencies each band holds. `shares`: per cent of each band's own sum.
    """
    ax = axes_for(ax)
    totals = means.sum(axis=1).to_numpy()
    of_band = means.div(np.where(totals > 0, totals, 1.0), axis=0)
    drawn = 100.0 * of_band if shares else means
    spare = iter(colours(8)[2:])
    bottom, other = np.zeros(len(means)), np.zeros(len(means))
    for part in means.columns:
        height = drawn[part].to_numpy()
        if len(means.columns) > 5 and of_band[part].max() < LEAST_SHARE:
            other += height
            continue
        colour = PART_COLOURS.get(part) or next(spare)
        ax.bar(range(len(means)), height, 0.7, bottom=bottom, color=colour, label=part)
        bottom += height
    if other.any():
        ax.bar(range(len(means)), other, 0.7, bottom=bottom, color=PART_COLOURS["other"], label="other")
    ax.set_xticks(
        range(len(means)), [f"{name}\nn={size:,}" for name, size in zip(means.index, sizes, strict=True)]
    )
    ax.grid(visible=False, axis="x")
    ax.set_ylabel("share of the latency (%)" if shares else f"mean latency ({unit})")
    if legend:
        legend_above(ax)
    return ax


def latency_parts(requests: pd.DataFrame, metric: str = "e2e") -> pd.DataFrame:
    """Split the finished requests' TTFT or E2E (s) into what a run folder knows; the columns add up to it.

    TTFT: `queued` until first scheduled, then `prefill` (preemptions before it included).
    E2E: `queued`, `preempted` (waiting after preemptions) and `running`, the rest. Raises ValueError else.
    """
    done = requests[requests["status"].eq("finished")]
    queued = done["first_scheduled_s"] - done["arrival_s"]
    if metric == "ttft":
        return pd.DataFrame({"queued": queued, "prefill": done["first_token_s"] - done["first_scheduled_s"]})
    if metric == "e2e":
        running = done["last_token_s"] - done["first_scheduled_s"] - done["stalled_s"]
        return pd.DataFrame({"queued": queued, "preempted": done["stalled_s"], "running": running})
    raise ValueError(f"no parts of {metric!r}; of ttft or e2e")
