"""F12, preemption tax: how much is computed twice as KV gets scarce, and whom it hits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sim.figures.style import axes_for, colours, styled


@styled
def plot_preemption_tax(sweep: pd.DataFrame, ax: Axes | Figure | None = None) -> Axes:
    """Draw recomputed tokens in per cent of all computed tokens over the KV capacity, a line for each policy.

    `sweep` has a row for each run: `kv_tokens`, `recomputed_token_share` (0..1), and if known `label` and the
    ends of a confidence interval, `share_low` and `share_high`.
    """
    ax = axes_for(ax)
    table = sweep if "label" in sweep else sweep.assign(label="")
    labels = list(dict.fromkeys(table["label"]))
    for label, colour in zip(labels, colours(len(labels)), strict=True):
        rows = table[table["label"].eq(label)].sort_values("kv_tokens")
        kilo_tokens = rows["kv_tokens"] / 1000.0
        ax.plot(kilo_tokens, 100.0 * rows["recomputed_token_share"], "o-", color=colour, label=label or None)
        if "share_low" in rows:
            low, high = 100.0 * rows["share_low"], 100.0 * rows["share_high"]
            ax.fill_between(kilo_tokens, low, high, color=colour, alpha=0.2, lw=0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("KV capacity (thousand tokens)")
    ax.set_ylabel("recomputed tokens (%)")
    if labels != [""]:
        ax.legend(loc="upper right")
    return ax


@styled
def plot_preemptions_per_request(
    requests: pd.DataFrame | Mapping[str, pd.DataFrame], ax: Axes | Figure | None = None
) -> Axes:
    """Draw how many requests were preempted how often, on a log axis; a mapping gives a colour each.

    Tables have the columns of `requests.csv`. No bar stands for no request.
    """
    ax = axes_for(ax)
    tables = requests if isinstance(requests, Mapping) else {"": requests}
    width = 0.8 / max(1, len(tables))
    for i, ((label, table), colour) in enumerate(zip(tables.items(), colours(len(tables)), strict=True)):
        count = np.bincount(table["num_preemptions"].to_numpy(dtype=np.int64))
        times = np.flatnonzero(count)
        shift = (i - (len(tables) - 1) / 2.0) * width
        ax.bar(
            times + shift,
            count[times],
            width,
            color=colour,
            label=f"{label} (n={len(table):,})" if label else None,
        )
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.7)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("preemptions of one request")
    ax.set_ylabel("requests")
    if any(tables):
        ax.legend(loc="upper right")
    return ax
