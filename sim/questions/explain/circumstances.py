"""What went on around the slowest: the worst minute, when most of them came, and how bad preemption was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.questions.explain.ledger import Ledger
from sim.questions.explain.parts import PREEMPTED, RECOMPUTE
from sim.results.preemptions import USUAL_PREEMPTIONS
from sim.simulation import RunResult
from sim.values import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

_WIDTHS_S = (60.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run. Rates are of the whole fleet; `mean_*` those of the whole run.

    `slow` of the `all_slow` slowest fell into it. `over_budget`: prompts that came in it and are longer than
    the token budget of a step. `replica` is the one that served most of these, with its share of them. At the
    start `line_at_start` requests waited there, and somebody had ever since `line_since_s`; from then on
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


def worst_window(at_s: Floats, weight: Ints, replica: Ints, result: RunResult) -> Window | None:
    """The minute (of short runs a tenth or so) that holds most of the slowest; the first of equals.

    `at_s`, `weight` and `replica`: when each of the slowest came, how many it stands for, and where. None if
    there are none.
    """
    if not len(at_s):
        return None
    requests, steps = result.requests, result.steps
    token_budget = result.setup.replica.scheduler.max_num_batched_tokens
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
        largest("kv_used_blocks") / result.setup.num_gpu_blocks,
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


@dataclass(frozen=True, slots=True)
class PreemptionVerdict:
    """The accounts of a run's preemptions.

    `cost_s` maps percentiles to what E2E at that percentile would lose if every request were spared the time
    it was preempted and the time of its own recomputation. What it would gain from the others' is not in it:
    the remedies that end preemption show that. `histogram`: requests by how often they were preempted;
    `worst`: the request preempted most often and how often.
    """

    count: int
    per_request: float
    recomputed_share: float
    cost_s: Mapping[float, float]
    histogram: Mapping[int, int]
    longest_chain: int
    worst: tuple[int, int] | None
    stalled_s: float
    useful_tokens_per_busy_s: float | None
    verdict: str

    @property
    def is_thrashing(self) -> bool:
        """Whether a request was preempted more often than is usual."""
        return self.worst is not None and self.worst[1] > USUAL_PREEMPTIONS


def judge_preemptions(result: RunResult, books: Ledger, percentiles: tuple[float, ...]) -> PreemptionVerdict:
    """The verdict on a run; cost at each of the percentiles."""
    summary, table = result.summary, result.preemptions
    histogram = summary["preemption_histogram"]
    assert isinstance(histogram, dict)
    by_count = {int(count): int(str(requests)) for count, requests in histogram.items()}
    count = sum(times * requests for times, requests in by_count.items())
    worst = None
    if len(table):
        times = table["num_preemptions"].to_numpy()
        worst = int(table["request_id"].to_numpy()[times.argmax()]), int(times.max())
    useful = summary["useful_tokens_per_busy_s"]
    return PreemptionVerdict(
        count,
        count / max(sum(by_count.values()), 1),
        float(str(summary["recomputed_token_share"])),
        {p: _cost_s(books.e2e, p) for p in percentiles},
        by_count,
        int(str(summary["longest_preemption_chain"])),
        worst,
        float(str(summary["preemption_stalled_s"])),
        float(useful) if isinstance(useful, (int, float)) else None,
        str(summary["progress"]),
    )


def _cost_s(e2e: Floats, percent: float) -> float:
    """What a percentile of E2E loses without each request's own stalls and recomputation."""
    if not len(e2e):
        return 0.0
    with_s = e2e.sum(axis=1)
    without_s = with_s - e2e[:, PREEMPTED] - e2e[:, RECOMPUTE]
    return float(np.percentile(with_s, percent) - np.percentile(without_s, percent))
