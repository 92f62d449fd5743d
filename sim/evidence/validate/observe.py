"""What the client of a measured run would have seen of the simulated one, under the run table's column names.

The simulation's clock stands in the engine; a client also sees its own time and that of the network between.
What a load generator adds grows with what it has in flight, the same for every run of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from cost_models import client_overhead_s
from sim.evidence.validate.run_table import MEASURES

__all__ = ["observe"]

Floats = np.ndarray


def observe(
    requests: pd.DataFrame,
    summary: Mapping[str, object],
    *,
    client: str | None,
    warmup_s: float = 0.0,
) -> tuple[dict[str, float], pd.DataFrame]:
    """Every measure of a run by column name (ms, per second), and its latencies request by request.

    `requests` has the columns of `requests.csv`, `summary` those of `summary.json` (for the pooled ITL).
    Counted are the finished requests that arrived at or after `warmup_s`. The second value has columns
    arrival_s, ttft_s, tpot_s, e2e_s.
    """
    measured = requests[requests["arrival_s"] >= warmup_s]
    done = measured[np.isfinite(measured["last_token_s"]) & (measured["status"] == "finished")]
    arrival_s, first_s, last_s = (
        done[name].to_numpy(dtype=float) for name in ("arrival_s", "first_token_s", "last_token_s")
    )
    output_tokens = done["output_tokens"].to_numpy(dtype=np.int64)
    in_flight = _in_flight(arrival_s, last_s, first_s)
    added_s = np.array([client_overhead_s(n, client or "") for n in in_flight])
    seen = pd.DataFrame(
        {
            "arrival_s": arrival_s - (arrival_s.min() if len(arrival_s) else 0.0),
            "ttft_s": first_s - arrival_s + added_s,
            "tpot_s": np.where(
                output_tokens > 1, (last_s - first_s) / np.maximum(output_tokens - 1, 1), np.nan
            ),
            "e2e_s": last_s - arrival_s + added_s,
        }
    )
    found = {"completed": float(len(done)), "failed": float(len(measured) - len(done))}
    found |= _throughput(done, arrival_s, last_s + added_s)
    for metric in ("ttft", "tpot", "e2e"):
        found |= _statistics(metric, seen[f"{metric}_s"].to_numpy())
    found |= _pooled_itl(summary)
    return {column: found[column] for column in MEASURES if np.isfinite(found.get(column, np.nan))}, seen


def _in_flight(arrival_s: Floats, last_s: Floats, at_s: Floats) -> Floats:
    """How many requests were sent and had not ended at each of these moments."""
    sent = np.searchsorted(np.sort(arrival_s), at_s, side="right")
    ended = np.searchsorted(np.sort(last_s), at_s, side="left")
    return np.asarray(sent - ended)


def _throughput(done: pd.DataFrame, arrival_s: Floats, end_s: Floats) -> dict[str, float]:
    """From the first send to the last completion, as `vllm bench serve` counts."""
    duration_s = float(end_s.max() - arrival_s.min()) if len(done) else 0.0
    if duration_s <= 0:
        return {}
    prompt, output = float(done["prompt_tokens"].sum()), float(done["output_tokens"].sum())
    return {
        "req_tput_rps": len(done) / duration_s,
        "in_tput_tok_s": prompt / duration_s,
        "out_tput_tok_s": output / duration_s,
        "total_tput_tok_s": (prompt + output) / duration_s,
    }


def _statistics(metric: str, seconds: Floats) -> dict[str, float]:
    seconds = seconds[np.isfinite(seconds)]
    if not len(seconds):
        return {}
    found = {f"{metric}_mean_ms": float(seconds.mean()) * 1e3}
    for percent in (50, 90, 95, 99):
        found[f"{metric}_p{percent}_ms"] = float(np.percentile(seconds, percent)) * 1e3
    return found


def _pooled_itl(summary: Mapping[str, object]) -> dict[str, float]:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
    found: dict[str, float] = {}
    for stat, key in names.items():
        value = summary.get(f"{key}_itl_ms")
        if isinstance(value, int | float):
            found[f"itl_{stat}_ms"] = float(value)
    return found
