"""F10, request waterfall: a row for each request, and what it did when: one bad minute, explained."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.style import (
    DECODE,
    MUTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STALLED,
    axes_for,
    legend_above,
    styled,
)
from sim.results.run_tables import MOMENTS, last_moment, preemption_cuts, request_ends, request_spans

MAX_ROWS = 40
MAX_NOTES = 20
"""With more rows there is no room for words beside each."""
KINDS = {
    "queued": (QUEUED, ""),
    "prefill": (PREFILL, ""),
    "decode": (DECODE, ""),
    "preempted": (STALLED, ""),
    "recompute": (RECOMPUTE, "/////"),
}


@styled
def plot_request_waterfall(
    requests: pd.DataFrame,
    ax: Axes | Figure | None = None,
    *,
    stalls: pd.DataFrame | None = None,
    t0: float | None = None,
    t1: float | None = None,
    max_rows: int = MAX_ROWS,
) -> Axes:
    """Draw each request in flight during [t0, t1] as a row, in order of arrival, at most `max_rows`.

    Queued until first scheduled, prefill until the first token, decode until the last. `stalls` (columns
    `request_id`, `preempted_s`, `resumed_s`, `next_token_s`; a preemption a row) cuts out the time a request
    lost to preemptions: waiting, then recomputing until its next token. Without it a preempted request's row
    only says how often and how long. Requests never scheduled are queued until they are aborted or the run
    ends. Returns the Axes.
    """
    ax = axes_for(ax)
    start, end = -np.inf if t0 is None else t0, np.inf if t1 is None else t1
    table = requests.assign(end_s=request_ends(requests, last_moment(requests)).to_numpy())
    inside = table["arrival_s"].lt(end) & table["end_s"].gt(start) & table["status"].ne("rejected")
    chosen = table[inside]
    rows = chosen.sort_values(["arrival_s", "request_id"]).head(max_rows)
    spans: dict[str, list[tuple[int, float, float]]] = {kind: [] for kind in KINDS}
    lost = preemption_cuts(stalls)
    ids, ends = rows["request_id"].tolist(), rows["end_s"].tolist()
    begins = rows[list(MOMENTS[:3])].to_numpy(dtype=float).tolist()
    for row, (request_id, moments, until_s) in enumerate(zip(ids, begins, ends, strict=True)):
        arrival_s, scheduled_s, first_s = moments
        cuts = lost.get(request_id, [])
        for kind, from_s, to_s in request_spans(arrival_s, scheduled_s, first_s, until_s, cuts):
            spans[kind].append((row, from_s, to_s))
    for kind, (colour, hatch) in KINDS.items():
        if spans[kind]:
            row, from_s, to_s = np.array(spans[kind]).T
            bars = ax.barh(row, to_s - from_s, left=from_s, height=0.8, color=colour, label=kind)
            for bar in bars if hatch else ():
                bar.set(hatch=hatch, edgecolor=PREFILL, linewidth=0.0)
    if stalls is None and len(rows) <= MAX_NOTES:
        _say_preemptions(ax, rows)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks([])
    ax.grid(visible=False, axis="y")
    if len(rows):
        ax.set_xlim(rows["arrival_s"].min() if t0 is None else t0, t1)
    ax.set_xlabel("time (s)")
    more = f": {len(rows)} of {len(chosen):,}" if len(rows) < len(chosen) else ""
    ax.set_ylabel(f"request (by arrival{more})")
    legend_above(ax)
    return ax


def _say_preemptions(ax: Axes, rows: pd.DataFrame) -> None:
    """Right of a request's bar, how often it was preempted and how long it then waited in all."""
    for row, (count, stalled_s, last_s) in enumerate(
        zip(rows["num_preemptions"], rows["stalled_s"], rows["last_token_s"], strict=True)
    ):
        if count and np.isfinite(last_s):
            ax.annotate(
                f"{count}× preempted, {stalled_s:.2g} s",
                xy=(last_s, row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                color=MUTED,
                fontsize=6.5,
                annotation_clip=True,
            )
