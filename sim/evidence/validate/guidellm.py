"""A benchmark of GuideLLM's `benchmarks.json` (report version 2) as a measured run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.errors import input_error
from sim.evidence.validate.json_fields import (
    Json,
    find_table,
    find_text,
    latency_statistics,
    number,
    table,
    tables,
    text,
)
from sim.evidence.validate.lengths import FromFile, Mean
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.run_table import MeasuredRun

__all__ = ["guidellm_run"]


def guidellm_run(path: Path, data: Json, index: int) -> tuple[MeasuredRun, RequestRows | None]:
    """Benchmark number `index` of a report, and its successful requests if it lists them."""
    bench = tables(data, "benchmarks")[index]
    metrics = table(bench, "metrics")
    strategy = find_table(table(bench, "config"), "strategy") or {}
    kind = text(strategy, "type_") or ""
    rows = _rows(bench)
    count = rows.count if rows else int(number(_distribution(metrics, "request_latency"), "count") or 0)
    if count < 1:
        raise input_error(f"benchmarks[{index}]: no request succeeded", where=str(path))
    rate = number(strategy, "rate")
    streams = (
        1.0 if kind == "synchronous" else number(strategy, "streams") or number(strategy, "max_concurrency")
    )
    load = "closed" if kind in ("synchronous", "concurrent") else "burst" if kind == "throughput" else "trace"
    if load == "trace" and (rows is None or rows.arrival_s is None):
        load = "poisson" if rate else "burst"
    model = next((value for value in (find_text(bench, "model"), find_text(data, "model")) if value), None)
    return MeasuredRun(
        run_id=f"{path.stem}#{index}",
        source=path.name,
        model=model,
        load=load,
        rate_per_s=rate,
        max_concurrency=int(streams) if streams else None,
        num_requests=count,
        prompt=FromFile() if rows else Mean(_required_mean(path, metrics, "prompt_token_count")),
        output=FromFile() if rows else Mean(_required_mean(path, metrics, "output_token_count")),
        client="python_multi",
        measured=_measures(metrics, rows),
    ), rows


def _rows(bench: Json) -> RequestRows | None:
    listed = [
        request for request in tables(table(bench, "requests"), "successful") if isinstance(request, dict)
    ]
    starts = [number(table(table(request, "info"), "timings"), "request_start") for request in listed]
    columns = {
        name: [number(request, name) for request in listed]
        for name in ("prompt_tokens", "output_tokens", "time_to_first_token_ms", "request_latency")
    }
    whole = [
        i
        for i in range(len(listed))
        if starts[i] is not None and all(columns[name][i] for name in ("prompt_tokens", "output_tokens"))
    ]
    if not whole:
        return None
    whole.sort(key=lambda i: starts[i] or 0.0)

    def column(name: str) -> np.ndarray:
        return np.array([np.nan if (v := columns[name][i]) is None else v for i in whole], dtype=float)

    arrival = np.array([starts[i] for i in whole], dtype=float)
    return RequestRows(
        count=len(whole),
        arrival_s=arrival - arrival[0],
        prompt_tokens=column("prompt_tokens").astype(np.int64),
        output_tokens=column("output_tokens").astype(np.int64),
        ttft_s=column("time_to_first_token_ms") / 1e3,
        e2e_s=column("request_latency"),
    )


def _measures(metrics: Json, rows: RequestRows | None) -> dict[str, float]:
    """GuideLLM's own statistics. Its inter_token_latency is a per-request mean, here called TPOT."""
    found = latency_statistics(rows) if rows is not None else {}
    for ours, theirs, scale in (
        ("ttft", "time_to_first_token_ms", 1.0),
        ("tpot", "inter_token_latency_ms", 1.0),
        ("e2e", "request_latency", 1e3),
    ):
        spread = _distribution(metrics, theirs)
        percentiles = table(spread, "percentiles")
        values = {"mean": number(spread, "mean"), "p50": number(spread, "median")}
        values |= {stat: number(percentiles, stat) for stat in ("p90", "p95", "p99")}
        found |= {f"{ours}_{stat}_ms": value * scale for stat, value in values.items() if value}
    for ours, theirs in (
        ("req_tput_rps", "requests_per_second"),
        ("out_tput_tok_s", "output_tokens_per_second"),
        ("total_tput_tok_s", "tokens_per_second"),
    ):
        value = number(_distribution(metrics, theirs), "mean")
        if value:
            found[ours] = value
    return found


def _required_mean(path: Path, metrics: Json, name: str) -> float:
    value = number(_distribution(metrics, name), "mean")
    if not value:
        raise input_error(f"lists no requests and has no mean of {name}", where=str(path))
    return value


def _distribution(metrics: Json, name: str) -> Json:
    return table(table(metrics, name), "successful")
