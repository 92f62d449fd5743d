"""A result of `vllm bench serve --save-result` (better with `--save-detailed`) as a measured run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.errors import input_error
from sim.evidence.validate.json_fields import Json, array, latency_statistics, number, statistics, text
from sim.evidence.validate.lengths import FromFile, Mean
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.run_table import MeasuredRun, with_columns

__all__ = ["vllm_bench_run"]

_THEIR_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def vllm_bench_run(path: Path, line: int, data: Json) -> tuple[MeasuredRun, RequestRows | None]:
    """The run that one JSON object of `path` tells of, and its requests if it lists them."""
    rows = _rows(data)
    count = int(number(data, "completed") or 0)
    if count < 1:
        raise input_error("no request of this run succeeded", where=f"{path}:{line}")
    cap = number(data, "max_concurrency")
    rate = number(data, "request_rate")
    listed = rows is not None and rows.arrival_s is not None
    load = "trace" if listed else "poisson_exact" if rate else "burst" if not cap else "closed"
    run = MeasuredRun(
        run_id=path.stem if line == 1 else f"{path.stem}:{line}",
        line=line,
        source=path.name,
        model=text(data, "model_id"),
        load=load,
        rate_per_s=rate,
        max_concurrency=int(cap) if cap else None,
        num_requests=count,
        prompt=FromFile() if rows is not None else _mean(data, "total_input_tokens", count),
        output=FromFile() if rows is not None else _mean(data, "total_output_tokens", count),
        client="python",
        measured=_measures(data, rows),
    )
    # `--metadata gpu=h100-sxm tp=2` is the place where a result file can say what it ran on.
    return with_columns(run, {name: value for name, value in data.items() if isinstance(value, str)}), rows


def _rows(data: Json) -> RequestRows | None:
    """The requests that succeeded, in the order of sending; None without the arrays."""
    prompt, output = array(data, "input_lens"), array(data, "output_lens")
    if prompt is None or output is None or len(prompt) != len(output):
        return None
    good = (output > 0) & (prompt > 0)
    arrival = array(data, "start_times")
    queued = array(data, "queue_times")
    if arrival is not None and queued is not None and len(queued) == len(arrival):
        # start_times are taken after the wait for a slot of --max-concurrency.
        arrival = arrival - np.nan_to_num(queued)
    order = np.flatnonzero(good)
    if arrival is not None:
        order = order[np.argsort(arrival[good], kind="stable")]
    ttft, gaps = array(data, "ttfts"), data.get("itls")
    e2e = None
    if ttft is not None and isinstance(gaps, list) and len(gaps) == len(ttft):
        e2e = ttft + np.array([float(sum(each)) for each in gaps])
    return RequestRows(
        count=len(order),
        arrival_s=None if arrival is None else arrival[order] - arrival[order[0]],
        prompt_tokens=prompt[order].astype(np.int64),
        output_tokens=output[order].astype(np.int64),
        ttft_s=None if ttft is None else ttft[order],
        e2e_s=None if e2e is None else e2e[order],
    )


def _measures(data: Json, rows: RequestRows | None) -> dict[str, float]:
    found = latency_statistics(rows) if rows is not None else {}
    gaps = data.get("itls")
    if isinstance(gaps, list) and any(gaps):
        found |= statistics("itl", np.concatenate([np.asarray(each, dtype=float) for each in gaps]))
    for metric, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        for stat, name in _THEIR_STATISTICS.items():
            value = number(data, f"{name}_{theirs}_ms")
            if value:
                found[f"{metric}_{stat}_ms"] = value
    for ours, theirs in (
        ("completed", "completed"),
        ("failed", "failed"),
        ("req_tput_rps", "request_throughput"),
        ("out_tput_tok_s", "output_throughput"),
        ("total_tput_tok_s", "total_token_throughput"),
    ):
        value = number(data, theirs)
        if value is not None:
            found[ours] = value
    return found


def _mean(data: Json, key: str, count: int) -> Mean | None:
    total = number(data, key)
    return Mean(total / count) if total else None
