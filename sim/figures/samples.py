"""From a table of requests to samples of one metric, as `sim.results.metrics` defines it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sim.results.metrics import latencies_s
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
    """The finished requests' TTFT, TPOT or E2E in seconds, unsorted; no TPOT of those with one output token.

    Requests that were aborted, rejected or still in flight have no say, as in `vllm bench serve`; `missing`
    counts them.
    """
    done = requests[requests["status"].eq("finished")]
    values = latencies_s(
        metric,
        done["arrival_s"].to_numpy(np.float64),
        done["first_token_s"].to_numpy(np.float64),
        done["last_token_s"].to_numpy(np.float64),
        done["output_tokens"].to_numpy(np.int64),
    )
    return values[~np.isnan(values)] if metric == "tpot" else values


def missing(requests: pd.DataFrame) -> int:
    """How many requests of the table did not finish, and so are in no latency sample."""
    return int(len(requests) - requests["status"].eq("finished").sum())
