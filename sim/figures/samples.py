"""From a table of requests to samples of one metric, as `sim.results.metrics` defines it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sim.values import Floats


@dataclass(frozen=True)
class Metric:
    """One latency metric: its name in texts, the unit on axes, and how many of those make a second."""

    name: str
    unit: str
    per_second: float
    log: bool = False

    @property
    def label(self) -> str:
        """Axis label, with the unit."""
        return f"{self.name} ({self.unit})"

    def text(self, value_s: float) -> str:
        """A value in the metric's unit, three digits: `40 ms`."""
        return f"{value_s * self.per_second:.3g} {self.unit}"


METRICS: Mapping[str, Metric] = {
    "ttft": Metric("TTFT", "s", 1.0, log=True),
    "tpot": Metric("TPOT", "ms", 1000.0),
    "itl": Metric("ITL", "ms", 1000.0),
    "e2e": Metric("E2E", "s", 1.0),
}
"""The metrics that figures know, by the key that tables, SLOs and functions use."""


def latency_s(requests: pd.DataFrame, metric: str) -> Floats:
    """The finished requests' TTFT, TPOT or E2E in seconds, unsorted.

    TTFT = first token - arrival. E2E = last token - arrival. TPOT = (last - first token)/(output tokens - 1),
    requests with one output token left out. Requests that were aborted, rejected or still in flight have no
    say, as in `vllm bench serve`; `missing` counts them.
    """
    done = requests[requests["status"].eq("finished")]
    if metric == "ttft":
        values = done["first_token_s"] - done["arrival_s"]
    elif metric == "e2e":
        values = done["last_token_s"] - done["arrival_s"]
    elif metric == "tpot":
        done = done[done["output_tokens"] > 1]
        values = (done["last_token_s"] - done["first_token_s"]) / (done["output_tokens"] - 1)
    else:
        raise ValueError(f"no metric {metric!r} in a table of requests; it has ttft, tpot and e2e")
    return values.to_numpy(dtype=np.float64)


def missing(requests: pd.DataFrame) -> int:
    """How many requests of the table did not finish, and so are in no latency sample."""
    return int(len(requests) - requests["status"].eq("finished").sum())
