"""From a finished recording to the numbers people quote; each metric is defined here, once.

TTFT  first token − arrival at the cluster (server queueing included, waiting in the client not).
TPOT  (last token − first token) / (output tokens − 1), per request, only where output tokens > 1.
ITL   every gap between two bursts of tokens of a request, pooled over requests.
E2E   last token − arrival.

Latencies are of finished requests that arrived at or after the end of the warm-up. Percentiles interpolate
linearly as `numpy.percentile` does, standard deviations are those of the population: both as in `vllm bench
serve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cluster.recorder import Recorder, Status, TokenTimes
from sim.scenario.slo import SloTarget
from sim.values import Bools, Floats, Ints

VLLM_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""The latencies, and what the keys of `vllm bench serve --save-result` call them."""

PERCENTILES = (90, 95, 99)
FEW_ABOVE = 10
"""A percentile with fewer samples than this above it says little; it is marked wherever it is shown."""


class Sample(NamedTuple):
    """Distinct values with how often each occurs, ascending: a sample of any size in little memory."""

    values: Floats
    counts: Ints

    @property
    def size(self) -> int:
        """How many values, repeats included."""
        return int(self.counts.sum())


def sample(values: Floats, counts: Ints | None = None) -> Sample:
    """Sort values into a `Sample`, NaN and those with count 0 left out; without counts each occurs once."""
    counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
    kept = np.isfinite(values) & (counts > 0)
    values, counts = values[kept], counts[kept]
    order = np.argsort(values, kind="stable")
    return Sample(values[order], counts[order])


def percentile(of: Sample, percent: float) -> float:
    """What `numpy.percentile(…, percent)` gives for the sample written out in full; NaN if it is empty."""
    if not len(of.values):
        return float("nan")
    last_rank = np.cumsum(of.counts) - 1
    at = (of.size - 1) * (percent / 100.0)
    below = floor(at)
    low, high = of.values[np.searchsorted(last_rank, [below, min(below + 1, of.size - 1)])]
    part = at - below
    # The two forms of numpy's own interpolation, so that the last bit agrees as well.
    return float(low + (high - low) * part) if part < 0.5 else float(high - (high - low) * (1 - part))


def mean_and_std(of: Sample) -> tuple[float, float]:
    """Mean and population standard deviation; NaN if the sample is empty."""
    if not len(of.values):
        return float("nan"), float("nan")
    mean = float(np.average(of.values, weights=of.counts))
    return mean, float(np.sqrt(np.average((of.values - mean) ** 2, weights=of.counts)))


def is_thin(size: int, percent: float) -> bool:
    """Whether fewer than `FEW_ABOVE` of `size` samples lie above this percentile."""
    return round(size * (1 - percent / 100.0), 6) < FEW_ABOVE


def tpot_s(decode_s: Floats, output_tokens: Ints) -> Floats:
    """Time per output token after the first, NaN with fewer than two; `decode_s`: first token to last."""
    return np.where(output_tokens > 1, decode_s / np.maximum(output_tokens - 1, 1), np.nan)


def latencies_s(
    metric: str, arrival_s: Floats, first_token_s: Floats, last_token_s: Floats, output_tokens: Ints
) -> Floats:
    """The `ttft`, `tpot` or `e2e` of each request in s; NaN where it has none. `ValueError` for others."""
    if metric == "ttft":
        return first_token_s - arrival_s
    if metric == "e2e":
        return last_token_s - arrival_s
    if metric != "tpot":
        raise ValueError(f"no metric {metric!r} in a table of requests; it has ttft, tpot and e2e")
    return tpot_s(last_token_s - first_token_s, output_tokens)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times in s, token counts and status of every request of the workload, by id.

    Times are NaN where nothing happened. `measured` marks requests that arrived at or after the end of the
    warm-up, `end_s` is when the clock stopped.
    """

    arrival_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    status: NDArray[np.int8]
    measured: Bools
    end_s: float

    @property
    def done(self) -> Bools:
        """Measured requests that finished."""
        finished: Bools = self.measured & (self.status == Status.FINISHED)
        return finished

    def latencies_s(self, metric: str) -> Floats:
        """The `ttft`, `tpot` or `e2e` of each request in s; NaN where it has none."""
        return latencies_s(metric, self.arrival_s, self.first_token_s, self.last_token_s, self.output_tokens)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, by request."""
        return self.latencies_s("ttft")

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, by request; NaN with fewer than two."""
        return self.latencies_s("tpot")

    @property
    def e2e_s(self) -> Floats:
        """End-to-end latency, by request."""
        return self.latencies_s("e2e")


def request_times(
    recorder: Recorder, tokens: TokenTimes, prompt_tokens: Ints, *, warmup_s: float, end_s: float
) -> RequestTimes:
    """Join the request columns with the first and last token times; `end_s` is when the clock stopped."""
    log = recorder.requests
    arrival_s = np.array(log.arrival_s)
    first_s, last_s = np.full(len(arrival_s), np.nan), np.full(len(arrival_s), np.nan)
    # Runs are ordered by request, then by time: assigning backwards leaves the earliest, forwards the latest.
    first_s[tokens.request[::-1]] = tokens.first_s[::-1]
    last_s[tokens.request] = tokens.last_s
    return RequestTimes(
        arrival_s,
        first_s,
        last_s,
        np.asarray(prompt_tokens, dtype=np.int64),
        np.array(log.output_tokens, dtype=np.int64),
        np.array(log.status, dtype=np.int8),
        arrival_s >= warmup_s,
        end_s,
    )


def inter_token_gaps(recorder: Recorder, tokens: TokenTimes, counted: Bools) -> Sample:
    """The pooled ITL sample of the requests marked in `counted`, exact, without a value per token.

    Inside a run the gap before step s is end[s] − end[s−1] for everybody in it, so it occurs as often as
    there are runs over both steps; gaps between two runs of a request are listed one by one.
    """
    run_counted = counted[tokens.request]
    values, counts = [], []
    for replica, log in enumerate(recorder.steps):
        chosen = run_counted & (tokens.replica == replica)
        end_s = log.end_s()
        covered = coverage(
            tokens.first_step[chosen] + 1, (tokens.first_step + tokens.num_steps)[chosen], len(end_s)
        )
        values.append(np.diff(end_s))
        counts.append(covered[1:])
    again = np.flatnonzero((tokens.request[1:] == tokens.request[:-1]) & run_counted[1:])
    values.append(tokens.first_s[again + 1] - tokens.last_s[again])
    counts.append(np.ones(len(again), dtype=np.int64))
    return sample(np.concatenate(values), np.concatenate(counts))


def coverage(first: Ints, stop: Ints, length: int) -> Ints:
    """How many of the ranges [first, stop) cover each of 0 … length − 1."""
    change = np.zeros(length + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, stop, -1)
    return np.cumsum(change)[:length]


def peak_concurrency(times: RequestTimes) -> int:
    """The most requests in a one-second bucket, counted from the first start.

    A request counts in each bucket that it touches, as in `vllm bench serve`; so the peak can exceed a limit
    on concurrency.
    """
    done = times.done
    if not done.any():
        return 0
    start_s = times.arrival_s[done]
    origin_s = start_s.min()
    first = np.floor(start_s - origin_s)
    last = np.floor(times.last_token_s[done] - origin_s)
    begun, over = np.searchsorted(np.sort(first), first, "right"), np.searchsorted(np.sort(last), first)
    return int((begun - over).max())


def peak_token_rate(recorder: Recorder, tokens: TokenTimes, times: RequestTimes) -> float:
    """Most token bursts in a one-second bucket, counted from the first start as `vllm bench serve` does."""
    done = times.done
    if not done.any():
        return 0.0
    origin_s = times.arrival_s[done].min()
    buckets, counts = [], []
    for replica, log in enumerate(recorder.steps):
        chosen = done[tokens.request] & (tokens.replica == replica)
        end_s = log.end_s()
        bursts = coverage(
            tokens.first_step[chosen], (tokens.first_step + tokens.num_steps)[chosen], len(end_s)
        )
        seen = bursts > 0
        buckets.append(np.floor(end_s[seen] - origin_s))
        counts.append(bursts[seen])
    _, bucket = np.unique(np.concatenate(buckets), return_inverse=True)  # most seconds of a long run are idle
    return float(np.bincount(bucket, weights=np.concatenate(counts)).max())


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares of judged requests that met each SLO alone and all at once, and how many met all."""

    by_target: tuple[float, ...]
    joint: float
    num_good: int
    num_judged: int


def attainment(times: RequestTimes, targets: Sequence[SloTarget]) -> Attainment:
    """Judge every measured request that arrived against every target.

    Rejected and aborted requests miss all. One still in flight at a horizon misses a target once the time it
    has waited exceeds the limit; while it may still meet them all it is not judged. TPOT counts as 0 with one
    token.
    """
    ended = times.measured & (times.status >= Status.FINISHED)
    flying = times.measured & (times.status == Status.IN_FLIGHT)
    failed = ended & (times.status != Status.FINISHED)
    waited_s = times.end_s - times.arrival_s
    so_far = {
        "ttft": np.where(np.isnan(times.first_token_s), waited_s, times.ttft_s),
        "tpot": np.nan_to_num(np.where(flying, 0.0, times.tpot_s), nan=0.0),
        "e2e": np.where(flying, waited_s, times.e2e_s),
    }
    met = [~failed & (so_far[target.metric] <= target.limit_s) for target in targets]
    good = np.logical_and.reduce(met) if met else ~failed
    judged = ended | (flying & ~good)
    size = int(judged.sum())
    share = [float((one & judged).sum() / size) if size else float("nan") for one in [*met, good]]
    return Attainment(tuple(share[:-1]), share[-1], int((good & judged).sum()), size)


def percentiles_over_time(time_by_count_s: Floats, percents: Sequence[float]) -> list[float]:
    """For each of `percents`, the count that is not exceeded for so many percent of the time.

    `time_by_count_s[n]` is the time (s) at count n.
    """
    total_s = time_by_count_s.sum()
    if total_s <= 0:
        return [float("nan")] * len(percents)
    share = np.cumsum(time_by_count_s) / total_s
    blocks = np.searchsorted(share, np.array(percents) / 100.0 - 1e-12)
    return [float(b) for b in np.minimum(blocks, len(share) - 1)]
