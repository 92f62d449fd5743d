"""Why a latency percentile is what it is: one observed run, its bands, its worst minute, its preemptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.cluster.recorder import Status
from sim.questions.explain.bands import MIDDLE, Band, Block, Sampled, band, edges, in_order, weights
from sim.questions.explain.candidates import Facts
from sim.questions.explain.gaps import Gaps
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import KEYS
from sim.questions.explain.preemption import PreemptionVerdict, judge_preemptions
from sim.questions.explain.remedies import Run, prompt_edges
from sim.questions.explain.window import Window, worst_window
from sim.results.metrics import RequestTimes, Sample, is_thin, percentile
from sim.values import Floats

METRICS = ("ttft", "e2el", "itl")


@dataclass(frozen=True, slots=True)
class Explanation:
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


def explain(observed: Observed, metric: str, percent: float) -> Explanation:
    """Explain a percentile of `ttft`, `e2el` or `itl`."""
    result, books = observed.result, observed.books
    times = result.times
    behind, prompts, outputs = (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)
    chunks, client = (0.0, 0.0), (0.0, 0.0)
    if metric == "itl":
        gaps = Gaps(result.recording[1], observed.spans, books, times.done)
        sampled, at_s, replica = gaps.sampled, gaps.end_s, gaps.replica
        chunks = _chunk_tokens(observed, gaps, percent)
    else:
        parts = books.ttft if metric == "ttft" else books.e2e
        sampled = in_order(observed.latency_s[metric], [Block(range(len(KEYS)), parts)])
        ids = books.request[sampled.order]
        at_s = times.arrival_s[ids]
        replica = np.array(result.recording[0].requests.replica)[ids]
        behind = _means(sampled, books.behind_s[sampled.order], percent)
        client = _means(sampled, np.array(result.recording[0].requests.client_queue_s)[ids], percent)
        prompts = _means(sampled, times.prompt_tokens[ids].astype(np.float64), percent)
        outputs = _means(sampled, times.output_tokens[ids].astype(np.float64), percent)
    slow, middle = band(sampled, percent, 100.0), band(sampled, *MIDDLE)
    marks = edges(percent)
    weight = weights(sampled, percent, 100.0) if sampled.size else np.zeros(len(at_s), dtype=np.int64)
    kept = weight > 0
    of = Sample(sampled.values[sampled.counts > 0], sampled.counts[sampled.counts > 0])
    waited = slow.parts["kv_blocks"]
    window = worst_window(
        at_s[kept],
        weight[kept],
        replica[kept],
        result.requests,
        result.steps,
        num_blocks=result.setup.num_gpu_blocks,
        token_budget=result.setup.replica.scheduler.max_num_batched_tokens,
    )
    return Explanation(
        metric,
        percent,
        percentile(of, percent) if of.size else None,
        is_thin(of.size, percent),
        slow,
        middle,
        tuple(band(sampled, low, high) for low, high in pairwise(marks)),
        {key: slow.parts[key] - middle.parts[key] for key in KEYS},
        behind[0] / waited if waited else 0.0,
        prompts,
        outputs,
        chunks,
        client,
        _uncounted(times),
        window,
        judge_preemptions(result, books, (50.0, percent)),
    )


def _uncounted(times: RequestTimes) -> dict[str, int]:
    """Measured requests that came and did not finish."""
    count = np.bincount(times.status[times.measured], minlength=len(Status))
    ends = (Status.REJECTED, Status.ABORTED, Status.IN_FLIGHT)
    return {end.name.lower(): int(count[end]) for end in ends if count[end]}


def _means(of: Sampled, values: Floats, percent: float) -> tuple[float, float]:
    """The mean over the slow and over the middle band."""
    if not of.size:
        return 0.0, 0.0
    slow, middle = weights(of, percent, 100.0), weights(of, *MIDDLE)
    return float(slow @ values / slow.sum()), float(middle @ values / middle.sum())


def _chunk_tokens(observed: Observed, gaps: Gaps, percent: float) -> tuple[float, float]:
    """Mean prompt and recomputed tokens in the steps of the slow gaps, and of those in the middle."""
    tokens = np.zeros(len(gaps.step))
    for number, log in enumerate(observed.result.recording[0].steps):
        counts = log.kept()[2]
        own = gaps.replica == number
        tokens[own] = counts[gaps.step[own], 1] + counts[gaps.step[own], 2]
    return _means(gaps.sampled, tokens, percent)


def facts_of(observed: Observed, explanation: Explanation) -> Facts:
    """What the choice of remedies goes by."""
    result = observed.result
    prompts = result.times.prompt_tokens[result.times.done]
    running = [log.kept()[2][:, 3].max(initial=0) for log in result.recording[0].steps]
    rate = result.summary["prefix_cache_hit_rate"]
    return Facts(
        result.setup.engine,
        result.scenario.cluster,
        explanation.metric,
        explanation.weight,
        explanation.preemption.count,
        int(max(running, default=0)),
        int(prompts.max(initial=0)),
        float(np.median(prompts)) if len(prompts) else 0.0,
        float(rate) if isinstance(rate, (int, float)) else 0.0,
    )


def as_run(observed: Observed) -> Run:
    """The observed run in the form in which remedies are judged."""
    result = observed.result
    requests = result.requests
    samples = {
        "arrival_s": requests["arrival_s"].to_numpy(),
        "prompt_tokens": requests["prompt_tokens"].to_numpy(),
        "ttft_s": (requests["first_token_s"] - requests["arrival_s"]).to_numpy(),
        "e2e_s": (requests["last_token_s"] - requests["arrival_s"]).to_numpy(),
        "status": requests["status"].to_numpy(dtype=str),
    }
    return Run(result.summary, samples, result.scenario.warmup_s)


def prompt_classes(observed: Observed) -> list[int]:
    """Lower edges of the classes of prompt length, if prompts are of several kinds."""
    times = observed.result.times
    budget = observed.result.setup.replica.scheduler.max_num_batched_tokens
    return prompt_edges(times.prompt_tokens[times.done].astype(np.float64), budget)
