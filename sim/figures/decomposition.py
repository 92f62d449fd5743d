"""F13, latency decomposition: what the slow requests waited for, and the quick ones did not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import DECODE, PREFILL, QUEUED, STALLED, axes_for, colours, legend_above, styled

BANDS = (0.0, 50.0, 90.0, 99.0, 100.0)
PART_COLOURS = {"queued": QUEUED, "prefill": PREFILL, "running": DECODE, "preempted": STALLED}


@styled
def plot_decomposition(
    parts: pd.DataFrame, ax: Axes | Figure | None = None, *, bands: Sequence[float] = BANDS, unit: str = "s"
) -> Axes:
    """Draw the mean of each part of a latency, stacked, for the requests within each band of percentiles.

    `parts` has a row for each request and a column for each part (s), as `latency_parts` gives; their sum is
    the latency by which requests are ranked. Bands are read (low, high]; each label has the number of
    requests.
    """
    ax = axes_for(ax)
    ranked = parts.iloc[np.argsort(parts.sum(axis=1).to_numpy(), kind="stable")]
    edges = np.round(np.asarray(bands) / 100.0 * len(ranked)).astype(int)
    groups = [ranked.iloc[low:high] for low, high in pairwise(edges)]
    spare = iter(colours(8)[2:])
    bottom = np.zeros(len(groups))
    for part in parts.columns:
        height = np.array([group[part].mean() if len(group) else 0.0 for group in groups])
        colour = PART_COLOURS.get(part) or next(spare)
        ax.bar(range(len(groups)), height, 0.7, bottom=bottom, color=colour, label=part)
        bottom += height
    names = [f"p{low:g}–p{high:g}" for low, high in pairwise(bands)]
    ax.set_xticks(
        range(len(groups)), [f"{name}\nn={len(group):,}" for name, group in zip(names, groups, strict=True)]
    )
    ax.grid(visible=False, axis="x")
    ax.set_ylabel(f"mean latency ({unit})")
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
