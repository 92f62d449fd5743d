"""The two tables of a sizing: what each candidate sustains, and the fleets that were simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan

import pandas as pd

from sim.questions.size.binding import comm_share, failing
from sim.questions.size.candidates import Candidate
from sim.questions.size.prices import Prices
from sim.questions.size.promise import Judgement, Promise
from sim.questions.size.search import Capacity, Fleet

Row = dict[str, object]

_NUMBERS = {
    "p99_ttft_s": ("p99_ttft_ms", 1e-3),
    "p99_tpot_ms": ("p99_tpot_ms", 1.0),
    "p99_e2e_s": ("p99_e2el_ms", 1e-3),
    "kv_usage_p95": ("kv_usage_p95", 1.0),
    "preemptions_per_request": ("preemptions_per_request", 1.0),
    "busy_share": ("busy_share", 1.0),
    "tokens_per_s_per_gpu": ("output_throughput_per_gpu", 1.0),
    "tokens_per_s_per_user": ("tokens_per_s_per_user", 1.0),
}


def capacity_rows(
    candidates: Sequence[Candidate], found: Mapping[int, Capacity], promise: Promise, prices: Prices | None
) -> pd.DataFrame:
    """One row a candidate, most requests for the money first (for each GPU, without prices).

    `rate_per_s` is the highest rate of `replicas` that kept the promise in every replication's interval,
    `above_per_s` the lowest that did not; numbers are means of the runs at the first.
    """
    rows: list[Row] = []
    for number, candidate in enumerate(candidates):
        row: Row = {"candidate": candidate.label, **candidate.setting, "gpus_per_replica": candidate.gpus}
        capacity = found.get(number)
        row["kv_tokens_per_gpu"] = candidate.kv_tokens_per_gpu
        row["error"] = candidate.fault if capacity is None else capacity.error
        if capacity is not None and capacity.error is None:
            gpus = candidate.gpus * capacity.replicas
            row |= {"replicas": capacity.replicas, "gpus": gpus, "rate_per_s": capacity.rate_per_s}
            row |= {"above_per_s": capacity.above_per_s, "rate_per_s_per_gpu": capacity.rate_per_s / gpus}
            if capacity.broken is not None:
                row["breaks"] = failing(capacity.broken, promise.targets)
            if capacity.kept is not None:
                row |= _judged(capacity.kept, promise)
                row["comm_share"] = comm_share(candidate, capacity.kept, capacity.replicas)
                row |= _money(candidate, prices, gpus, capacity.rate_per_s, capacity.kept)
        rows.append(row)
    table = pd.DataFrame(rows)
    for column in ("rate_per_s", "rate_per_s_per_gpu", "per_million_output"):
        if column not in table:
            table[column] = nan
    best = ["per_million_output", "rate_per_s_per_gpu", "candidate"]
    return table.sort_values(best, ascending=[True, False, True], kind="stable", ignore_index=True)


def fleet_rows(
    candidates: Sequence[Candidate], found: Mapping[int, Fleet], promise: Promise, prices: Prices | None
) -> pd.DataFrame:
    """One row for each fleet that was simulated: those that keep the promise first, the fewest GPUs first.

    `role` is `answer` for the smallest that does of each candidate, `near miss` for one replica fewer.
    """
    rows: list[Row] = []
    for number, fleet in found.items():
        candidate = candidates[number]
        for replicas, judged in fleet.tried.items():
            gpus = replicas * candidate.gpus
            role = {fleet.replicas: "answer", (fleet.replicas or 0) - 1: "near miss"}.get(replicas, "")
            row: Row = {"candidate": candidate.label, **candidate.setting, "replicas": replicas, "gpus": gpus}
            row |= {"role": role, "verdict": judged.verdict, "fails": failing(judged, promise.targets)}
            row |= {"seeds": judged.seeds, **_judged(judged, promise)}
            row |= _money(candidate, prices, gpus, fleet.rate_per_s, judged)
            rows.append(row)
    table = pd.DataFrame(rows)
    if len(table):
        order = ["verdict", "gpus", "candidate", "replicas"]
        table = table.sort_values(order, key=_met_first, kind="stable", ignore_index=True)
    return table


def _met_first(column: pd.Series) -> pd.Series:
    return column.ne("met") if column.name == "verdict" else column


def _judged(judged: Judgement, promise: Promise) -> Row:
    row: Row = {"attainment": judged.attainment.estimate}
    row |= {"attainment_low": judged.attainment.low, "attainment_high": judged.attainment.high}
    for key in promise.targets:
        share = judged.shares.get(f"attainment_{key}")
        row[f"attainment_{key}"] = nan if share is None else share.estimate
    for name, (column, factor) in _NUMBERS.items():
        row[name] = judged.numbers.get(column, nan) * factor
    return row


def _money(
    candidate: Candidate, prices: Prices | None, gpus: int, rate_per_s: float, judged: Judgement
) -> Row:
    """What the GPUs cost in an hour, and a million output tokens at that rate."""
    if prices is None or candidate.gpu not in prices.per_gpu_hour:
        return {}
    cost_per_h = gpus * prices.per_gpu_hour[candidate.gpu]
    row: Row = {"cost_per_h": cost_per_h}
    tokens = [(float(str(s["total_output_tokens"])), float(str(s["completed"]))) for s in judged.summaries]
    output, done = (sum(column) for column in zip(*tokens, strict=True)) if tokens else (0.0, 0.0)
    tokens_per_h = 3600.0 * rate_per_s * output / done if done else nan
    row["per_million_output"] = 1e6 * cost_per_h / tokens_per_h if isfinite(tokens_per_h) else nan
    return row
