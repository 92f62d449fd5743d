"""How bad preemption is: how often, what it cost, and whether the run was thrashing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.questions.explain.ledger import RECOMPUTE, STALLED, Ledger
from sim.results.preemptions import USUAL_PREEMPTIONS
from sim.simulation import RunResult
from sim.values import Floats


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
    without_s = with_s - e2e[:, STALLED] - e2e[:, RECOMPUTE]
    return float(np.percentile(with_s, percent) - np.percentile(without_s, percent))
