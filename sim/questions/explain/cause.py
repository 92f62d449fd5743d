"""The cause of a latency percentile: what the slowest had to wait for that those in the middle had not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.cluster.recorder import Status
from sim.questions.explain.circumstances import PreemptionVerdict, Window, judge_preemptions, worst_window
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import (
    KEYS,
    MIDDLE,
    Band,
    PartColumns,
    SortedLatencies,
    band,
    edges,
    in_order,
    weights,
)
from sim.questions.explain.step_phases import Gaps
from sim.results.metrics import RequestTimes, Sample, is_thin, percentile
from sim.values import Floats, Ints

METRICS = ("ttft", "e2e", "itl")


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
    sample = Sample(latencies.values[counted], latencies.counts[counted])
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
