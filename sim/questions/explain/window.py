"""The worst minute: when most of the slowest came, and what was different then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.values import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


_WIDTHS_S = (60.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run. Rates are of the whole fleet; `mean_*` those of the whole run.

    `slow` of the `all_slow` slowest fell into it. `over_budget`: prompts that came in it and are longer than
    the token budget of a step. `replica` is the one that served most of these, with its
    share of them. At
    the start `line_at_start` requests waited there, and somebody had ever since `line_since_s`; from then on
    `rate_since_per_s` came to the fleet.
    """

    start_s: float
    end_s: float
    slow: int
    all_slow: int
    rate_per_s: float
    mean_rate_per_s: float
    prompt_tokens_per_s: float
    mean_prompt_tokens_per_s: float
    longest_prompt_tokens: int
    over_budget: int
    max_waiting: int
    max_running: int
    max_kv_share: float
    num_preemptions: int
    replica: int
    replica_share: float
    line_at_start: int
    line_since_s: float
    rate_since_per_s: float


def worst_window(
    at_s: Floats,
    weight: Ints,
    replica: Ints,
    requests: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    num_blocks: int,
    token_budget: int,
) -> Window | None:
    """The minute (of short runs a tenth or so) that holds most of the slowest; the first of equals.

    `at_s`, `weight` and `replica`: when each of the slowest came, how many it stands for, and where. None if
    there are none.
    """
    if not len(at_s):
        return None
    arrivals = requests["arrival_s"].to_numpy()
    first_s, last_s = float(arrivals.min()), float(max(arrivals.max(), at_s.max()))
    long_s = last_s - first_s
    width_s = next((w for w in _WIDTHS_S if w * 5 <= long_s), max(long_s, 1e-3))
    order = np.argsort(at_s, kind="stable")
    sorted_s, sums = at_s[order], np.concatenate(([0], np.cumsum(weight[order])))
    within = sums[np.searchsorted(sorted_s, sorted_s + width_s, "right")] - sums[:-1]
    most = int(np.argmax(within))
    start_s = float(sorted_s[most])
    end_s = start_s + width_s
    here = requests[(arrivals >= start_s) & (arrivals <= end_s)]
    began_s = steps["t_s"] - steps["step_time_s"]
    during = steps[(steps["t_s"] >= start_s) & (began_s <= end_s)]
    inside = (at_s >= start_s) & (at_s <= end_s)
    served = np.bincount(np.maximum(replica[inside], 0), weights=weight[inside])
    busiest = int(np.argmax(served))
    mean_over_s = max(float(arrivals.max()) - first_s, width_s)

    def largest(column: str) -> int:
        return int(during[column].max()) if len(during) else 0

    return Window(
        start_s,
        end_s,
        int(within[most]),
        int(weight.sum()),
        len(here) / width_s,
        len(requests) / mean_over_s,
        float(here["prompt_tokens"].sum()) / width_s,
        float(requests["prompt_tokens"].sum()) / mean_over_s,
        int(here["prompt_tokens"].max()) if len(here) else 0,
        int((here["prompt_tokens"] > token_budget).sum()),
        largest("num_waiting"),
        largest("num_running"),
        largest("kv_used_blocks") / num_blocks,
        int(during["num_preemptions"].sum()),
        busiest,
        float(served[busiest] / served.sum()),
        *_line(arrivals, steps[steps["replica"].eq(busiest)], start_s),
    )


def _line(arrivals: Floats, steps: pd.DataFrame, start_s: float) -> tuple[int, float, float]:
    """How many wait at a moment, since when there is a line without a break, and the rate since then."""
    waiting = steps["num_waiting"].to_numpy()[steps["t_s"].to_numpy() <= start_s]
    if not len(waiting) or not waiting[-1]:
        return 0, start_s, 0.0
    empty = np.flatnonzero(waiting == 0)
    since_s = float(steps["t_s"].to_numpy()[empty[-1]]) if len(empty) else float(arrivals.min())
    came = int(((arrivals >= since_s) & (arrivals <= start_s)).sum())
    return int(waiting[-1]), since_s, came / max(start_s - since_s, 1e-9)
