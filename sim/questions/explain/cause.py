"""The cause of a latency percentile: what the slowest had to wait for that those in the middle had not; and
what went on around them: the worst minute, when most of them came, and how bad preemption was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.cluster.recorder import Status
from sim.questions.explain.ledger import Ledger
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import (
    KEYS,
    MIDDLE,
    PREEMPTED,
    RECOMPUTE,
    Band,
    PartColumns,
    SortedLatencies,
    band,
    edges,
    in_order,
    weights,
)
from sim.questions.explain.step_phases import Gaps
from sim.results.accounts import USUAL_PREEMPTIONS
from sim.results.metrics import RequestTimes, Sample, is_thin, percentile
from sim.simulation import RunResult
from sim.values import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("ttft", "e2e", "itl")
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


@dataclass(frozen=True, slots=True)
class Cause:
    """What was found out about one percentile of one metric of one run; times in s.

    `slow` is the band above the percentile, `middle` that around the median, `bands` all of them. `excess`:
    by part, what the slow ones have more of than those in the middle. `behind_share`: of the wait for KV
    blocks of the slow ones, what passed behind another request at the head of the line. `slow_prompt_tokens`,
    `slow_output_tokens` and `slow_chunk_tokens` (ITL: prompt tokens in the steps of the slow gaps) are means,
    beside those of the middle. `client_queue_s`: what they had waited in the client before they were sent,
    which no latency counts. `uncounted`: requests that did not finish, by how they ended.
    """

    metric: str
    percentile: float
    value_s: float | None
    is_thin: bool
    slow: Band
    middle: Band
    bands: tuple[Band, ...]
    excess: Mapping[str, float]
    behind_share: float
    slow_prompt_tokens: tuple[float, float]
    slow_output_tokens: tuple[float, float]
    slow_chunk_tokens: tuple[float, float]
    client_queue_s: tuple[float, float]
    uncounted: Mapping[str, int]
    window: Window | None
    preemption: PreemptionVerdict

    @property
    def weight(self) -> dict[str, float]:
        """By part, its share of what makes the slow ones slow; of all their time if that is no more than the
        others'.
        """
        more = {key: max(value, 0.0) for key, value in self.excess.items()}
        parts = more if sum(more.values()) > 0.2 * self.slow.mean_s else self.slow.parts
        total = sum(parts.values())
        return {key: value / total if total else 0.0 for key, value in parts.items()}

    @property
    def top(self) -> str | None:
        """The part that weighs most; None if nothing was measured."""
        if not self.slow.size:
            return None
        weight = self.weight
        return max(weight, key=lambda key: weight[key])

    @property
    def stands_out(self) -> bool:
        """Whether the slow ones are a different story from those in the middle."""
        return sum(max(value, 0.0) for value in self.excess.values()) > 0.2 * self.slow.mean_s


def find_cause(observed: Observed, metric: str, percent: float) -> Cause:
    """Find out why a percentile of `ttft`, `e2e` or `itl` of a run is what it is."""
    result = observed.result
    latencies, at_s, replica, own = _gaps(observed) if metric == "itl" else _requests(observed, metric)

    def means(name: str) -> tuple[float, float]:
        """The mean over the slow ones and over the middle; 0 where the metric has no such thing."""
        if name not in own or not latencies.size:
            return 0.0, 0.0
        slow, middle = weights(latencies, percent, 100.0), weights(latencies, *MIDDLE)
        return float(slow @ own[name] / slow.sum()), float(middle @ own[name] / middle.sum())

    slow, middle = band(latencies, percent, 100.0), band(latencies, *MIDDLE)
    weight = weights(latencies, percent, 100.0) if latencies.size else np.zeros(len(at_s), dtype=np.int64)
    kept = weight > 0
    counted = latencies.counts > 0
    sample = Sample(latencies.latency_s[counted], latencies.counts[counted])
    waited_s = slow.parts["kv_blocks"]
    return Cause(
        metric,
        percent,
        percentile(sample, percent) if sample.size else None,
        is_thin(sample.size, percent),
        slow,
        middle,
        tuple(band(latencies, low, high) for low, high in pairwise(edges(percent))),
        {key: slow.parts[key] - middle.parts[key] for key in KEYS},
        means("behind_s")[0] / waited_s if waited_s else 0.0,
        means("prompt_tokens"),
        means("output_tokens"),
        means("chunk_tokens"),
        means("client_queue_s"),
        _uncounted(result.times),
        worst_window(at_s[kept], weight[kept], replica[kept], result),
        judge_preemptions(result, observed.books, (50.0, percent)),
    )


_Known = tuple[SortedLatencies, Floats, Ints, dict[str, Floats]]
"""Latencies in ascending order; of each, when (s) and on which replica, and by name what else is known."""


def _requests(observed: Observed, metric: str) -> _Known:
    """The latencies of requests, by when these arrived."""
    latencies = in_order(observed.latency_s(metric), [PartColumns(range(len(KEYS)), observed.parts(metric))])
    times, log = observed.result.times, observed.result.recording[0].requests
    ids = observed.books.request[latencies.order]
    own = {
        "behind_s": observed.books.behind_s[latencies.order],
        "prompt_tokens": times.prompt_tokens[ids].astype(np.float64),
        "output_tokens": times.output_tokens[ids].astype(np.float64),
        "client_queue_s": np.array(log.client_queue_s)[ids],
    }
    return latencies, times.arrival_s[ids], np.array(log.replica)[ids], own


def _gaps(observed: Observed) -> _Known:
    """The gaps between tokens, by when these ended; with the prompt and recomputed tokens of their steps."""
    recorder, tokens = observed.result.recording
    books = observed.books
    gaps = Gaps(tokens, observed.steps, books.gap, books.gap_end_s, observed.result.times.done)
    chunk_tokens = np.zeros(len(gaps.step))
    for replica, log in enumerate(recorder.steps):
        counts = log.kept()[2]
        own = gaps.replica == replica
        chunk_tokens[own] = counts[gaps.step[own], 1] + counts[gaps.step[own], 2]
    return gaps.latencies, gaps.end_s, gaps.replica, {"chunk_tokens": chunk_tokens}


def _uncounted(times: RequestTimes) -> dict[str, int]:
    """Measured requests that came and did not finish."""
    count = np.bincount(times.status[times.measured], minlength=len(Status))
    ends = (Status.REJECTED, Status.ABORTED, Status.IN_FLIGHT)
    return {end.name.lower(): int(count[end]) for end in ends if count[end]}


# --- what went on around them -----------------------------------------------------------------------------


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
    if end_s > last_s:  # it holds the same if it begins earlier, and then its rates are true
        start_s, end_s = max(last_s - width_s, first_s), max(last_s, first_s + width_s)
    here = requests[(arrivals >= start_s) & (arrivals <= end_s)]
    began_s = steps["end_s"] - steps["step_time_s"]
    during = steps[(steps["end_s"] >= start_s) & (began_s <= end_s)]
    inside = (at_s >= start_s) & (at_s <= end_s)
    served = np.bincount(np.maximum(replica[inside], 0), weights=weight[inside])
    busiest = int(np.argmax(served))
    mean_over_s = max(float(arrivals.max()) - first_s, width_s)

    def largest(column: str) -> int:
        return int(during[column].max()) if len(during) else 0

    return Window(
        start_s,
        end_s,
        int(weight[inside].sum()),
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
    waiting = steps["num_waiting"].to_numpy()[steps["end_s"].to_numpy() <= start_s]
    if not len(waiting) or not waiting[-1]:
        return 0, start_s, 0.0
    empty = np.flatnonzero(waiting == 0)
    since_s = float(steps["end_s"].to_numpy()[empty[-1]]) if len(empty) else float(arrivals.min())
    came = int(((arrivals >= since_s) & (arrivals <= start_s)).sum())
    return int(waiting[-1]), since_s, came / max(start_s - since_s, 1e-9)


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
