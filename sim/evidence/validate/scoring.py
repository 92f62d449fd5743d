"""From simulated beside measured to errors, and from errors to how far a prediction can be trusted.

The simulation's clock stands in the engine; a client also sees its own time and that of the network between.
What a load generator adds grows with what it has in flight, the same for every run of its kind.

An error is (simulated − measured) / measured. A quantile over rows is weighted: runs that repeated one
condition share one vote, or a condition measured nine times would count nine times.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cost_models import client_overhead_s
from sim.evidence.validate.requests_file import statistics
from sim.evidence.validate.run_table import LATENCIES, MEASURES, THROUGHPUTS, MeasuredRun
from sim.values import Floats, Ints

__all__ = [
    "METRICS",
    "OBSERVED_COLUMNS",
    "ErrorSummary",
    "MetricError",
    "errors_by_metric",
    "group_by",
    "held_out",
    "is_saturated",
    "observe",
    "score",
    "summarize_errors",
]

#: The columns of requests that `observe` looks at.
OBSERVED_COLUMNS = (
    *("arrival_s", "first_token_s", "last_token_s", "ttft_s", "tpot_s", "e2e_s"),
    *("prompt_tokens", "output_tokens", "status"),
)
#: Every metric that has errors, in the order of reports.
METRICS = (
    *(f"saturated_{name}" for name in THROUGHPUTS),
    *(f"open_loop_{name}" for name in THROUGHPUTS),
    *(name.removesuffix("_ms") for name in LATENCIES),
)
#: Below this share of the offered rate a run did not keep up: its throughput tells what the engine can do.
KEEPING_UP = 0.96


def observe(
    requests: Mapping[str, np.ndarray],
    summary: Mapping[str, object],
    *,
    client: str | None,
    warmup_s: float = 0.0,
) -> tuple[dict[str, float], pd.DataFrame]:
    """What the client of a run would have seen: every measure of a run table by column name (ms, per second).

    `requests` has the `OBSERVED_COLUMNS`, `summary` those of `summary.json` (for the pooled ITL). Counted are
    the finished requests that arrived at or after `warmup_s`. The second value has what was seen request by
    request, in columns arrival_s, ttft_s, tpot_s, e2e_s.
    """
    measured = requests["arrival_s"] >= warmup_s
    done = measured & np.isfinite(requests["last_token_s"]) & (requests["status"] == "finished")
    finished = {name: values[done] for name, values in requests.items()}
    arrival_s, last_s = finished["arrival_s"], finished["last_token_s"]
    in_flight = _in_flight(arrival_s, last_s, finished["first_token_s"])
    added_s = np.array([client_overhead_s(n, client or "") for n in in_flight])
    seen = pd.DataFrame(
        {
            "arrival_s": arrival_s - (arrival_s.min() if len(arrival_s) else 0.0),
            "ttft_s": finished["ttft_s"] + added_s,
            "tpot_s": finished["tpot_s"],
            "e2e_s": finished["e2e_s"] + added_s,
        }
    )
    found = {"completed": float(done.sum()), "failed": float(measured.sum() - done.sum())}
    found |= _throughput(finished, last_s + added_s)
    for metric in ("ttft", "tpot", "e2e"):
        found |= statistics(metric, seen[f"{metric}_s"].to_numpy())
    found |= _pooled_itl(summary)
    return {column: found[column] for column in MEASURES if np.isfinite(found.get(column, np.nan))}, seen


def _in_flight(arrival_s: Floats, last_s: Floats, at_s: Floats) -> Ints:
    """How many requests were sent and had not ended at each of these moments."""
    sent = np.searchsorted(np.sort(arrival_s), at_s, side="right")
    ended = np.searchsorted(np.sort(last_s), at_s, side="left")
    return np.asarray(sent - ended)


def _throughput(finished: Mapping[str, np.ndarray], end_s: Floats) -> dict[str, float]:
    """From the first send to the last completion, as `vllm bench serve` counts."""
    count = len(end_s)
    duration_s = float(end_s.max() - finished["arrival_s"].min()) if count else 0.0
    if duration_s <= 0:
        return {}
    prompt, output = (float(finished[name].sum()) for name in ("prompt_tokens", "output_tokens"))
    per_s = (count, prompt, output, prompt + output)
    return {name: total / duration_s for name, total in zip(THROUGHPUTS, per_s, strict=True)}


def _pooled_itl(summary: Mapping[str, object]) -> dict[str, float]:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
    values = {stat: summary.get(f"{key}_itl_ms") for stat, key in names.items()}
    return {f"itl_{stat}_ms": float(v) for stat, v in values.items() if isinstance(v, int | float)}


@dataclass(frozen=True)
class MetricError:
    """One metric of one run; the name of a throughput says in which regime it was measured.

    Runs of one `condition` offered the very same requests to the same engine.
    """

    run: MeasuredRun
    condition: str
    metric: str
    measured: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Signed relative error."""
        return 100.0 * (self.simulated / self.measured - 1.0)

    @property
    def part(self) -> str:
        """Whether constants were fitted to the run, or it was held out."""
        return "held out" if held_out(self.run.run_id) else "fitted"


@dataclass(frozen=True)
class ErrorSummary:
    """Errors in % over `rows` rows: median and p90 absolute, median signed; weighted."""

    rows: int
    median: float
    p90: float
    bias: float
    worst: tuple[MetricError, ...]


def held_out(run_id: str) -> bool:
    """Whether a run belongs to the third of all experiments that no constant was fitted to.

    Decided by a hash of its id without the last part, which tells twins and stages of one experiment apart.
    """
    experiment = re.sub(r"/(patched|vanilla|s\d+)$", "", run_id)
    return hashlib.sha256(experiment.encode()).digest()[0] % 3 == 0


def is_saturated(run: MeasuredRun, num_requests: int, offer_s: float) -> bool:
    """Whether measured throughput is the engine's limit, not just the rate of `num_requests` in `offer_s`."""
    if run.load in ("closed", "burst"):
        return True
    achieved = run.measured.get("req_tput_rps")
    if achieved is None or offer_s <= 0:
        return False
    return achieved < KEEPING_UP * num_requests / offer_s


def score(
    run: MeasuredRun, simulated: Mapping[str, float], *, condition: str, saturated: bool
) -> list[MetricError]:
    """The metrics of a run that are measured, simulated and fit to be scored."""
    regime = "saturated_" if saturated else "open_loop_"
    return [
        MetricError(
            run=run,
            condition=condition,
            metric=regime + column if column in THROUGHPUTS else column.removesuffix("_ms"),
            measured=measured,
            simulated=simulated[column],
        )
        for column, measured in run.measured.items()
        if column not in ("completed", "failed")
        and measured > 0
        and column in simulated
        and run.scores(column)
    ]


def summarize_errors(errors: Sequence[MetricError], num_worst: int = 3) -> ErrorSummary:
    """The errors of one metric over any rows; ValueError if there are none."""
    if not errors:
        raise ValueError("no rows to summarize")
    votes = Counter(c.condition for c in errors)
    weights = np.array([1.0 / votes[c.condition] for c in errors])
    signed = np.array([c.error_percent for c in errors])
    ranked = sorted(errors, key=lambda c: -abs(c.error_percent))
    return ErrorSummary(
        rows=len(errors),
        median=weighted_quantile(np.abs(signed), weights, 0.5),
        p90=weighted_quantile(np.abs(signed), weights, 0.9),
        bias=weighted_quantile(signed, weights, 0.5),
        worst=tuple(ranked[:num_worst]),
    )


def errors_by_metric(errors: Iterable[MetricError]) -> dict[str, ErrorSummary]:
    """The errors of each metric that has any, in the order of `METRICS`."""
    groups = group_by(errors, lambda error: (error.metric,))
    return {name: summarize_errors(groups[(name,)]) for name in METRICS if (name,) in groups}


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """numpy's linear quantile where all weights are equal; each value stands at the middle of its weight."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middles = np.cumsum(weights) - 0.5 * weights
    span = middles[-1] - middles[0]
    if span <= 0:
        return float(values[-1])
    return float(np.interp(middles[0] + share * span, middles, values))


def group_by(
    errors: Iterable[MetricError], key: Callable[[MetricError], tuple[str, ...]]
) -> dict[tuple[str, ...], list[MetricError]]:
    """MetricErrors by a key, groups in sorted order of it."""
    groups: dict[tuple[str, ...], list[MetricError]] = {}
    for error in errors:
        groups.setdefault(key(error), []).append(error)
    return dict(sorted(groups.items()))
