"""What is worth seeing closely: the rules by which reports choose the windows of F9 and F10."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.figures.timeline import step_curve, stretches
from sim.results.spans import last_moment, request_ends
from sim.values import Floats

MINUTE_S = 60.0
CLOSE_S = 3.0
"""The stretch in which preemptions are counted to find where they are densest."""


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
    """Start and end (s) of the minute with the most preemptions or, if there were none, the most requests
    waiting or, if nobody waited, running; minutes are counted from `warmup_s`, and the first counts.
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
