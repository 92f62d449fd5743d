"""Times of requests made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.cluster.recorder import Status
from sim.results.metrics import RequestTimes


def make_times(
    ttft_s: Sequence[float],
    tpot_s: Sequence[float],
    *,
    arrival_s: Sequence[float] | None = None,
    output_tokens: int = 11,
    status: Sequence[Status] | None = None,
    end_s: float = 1000.0,
) -> RequestTimes:
    n = len(ttft_s)
    arrival = np.zeros(n) if arrival_s is None else np.asarray(arrival_s)
    first = arrival + np.asarray(ttft_s)
    return RequestTimes(
        arrival_s=arrival,
        first_token_s=first,
        last_token_s=first + np.asarray(tpot_s) * (output_tokens - 1),
        prompt_tokens=np.full(n, 100),
        output_tokens=np.full(n, output_tokens),
        status=np.array([Status.FINISHED] * n if status is None else status, dtype=np.int8),
        measured=np.ones(n, dtype=bool),
        end_s=end_s,
    )
