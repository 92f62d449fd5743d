"""The tables of a run as columns by name: what `requests.csv`, `steps.csv` and `preemptions.csv` hold.

They are arrays, and not yet frames, because a run is written to its folder without pandas, which takes as
long to load as all the rest of a short run.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.step_cost import BOUNDS
from sim.cluster.recorder import STEP_FIELDS, Recorder, Status, TokenTimes
from sim.results.metrics import RequestTimes
from sim.values import Floats
from sim.workload import RequestTable

if TYPE_CHECKING:
    import pandas as pd


Columns = dict[str, np.ndarray]

_ROUND_DIGITS = 9
"""Times in tables are rounded to the nanosecond; the summary is computed from the exact ones."""

_CHUNK = 65_536


def request_columns(
    recorder: Recorder, table: RequestTable, times: RequestTimes, aborted_s: Mapping[int, float]
) -> Columns:
    """One row for every request that arrived, by id."""
    log = recorder.requests
    columns: Columns = {
        "request_id": np.arange(len(table)),
        "class": np.array(table.class_names, dtype=object)[table.class_index],
        "session": table.session,
        "replica": np.array(log.replica),
        "arrival_s": times.arrival_s.round(_ROUND_DIGITS),
        "first_scheduled_s": np.array(log.first_scheduled_s).round(_ROUND_DIGITS),
        "first_token_s": times.first_token_s.round(_ROUND_DIGITS),
        "last_token_s": times.last_token_s.round(_ROUND_DIGITS),
        "prompt_tokens": table.prompt_tokens,
        "output_tokens": times.output_tokens,
        "cached_tokens": np.array(log.cached_tokens),
        "num_preemptions": np.array(log.num_preemptions),
        "recomputed_tokens": np.array(log.recomputed_tokens),
        "stalled_s": np.array(log.stalled_s).round(_ROUND_DIGITS),
        "status": np.array([status.name.lower() for status in Status], dtype=object)[times.status],
    }
    if table.adapter is not None:
        columns["adapter"] = np.array([*table.adapter_names, ""], dtype=object)[table.adapter]
    if aborted_s:
        ended_s = np.full(len(table), np.nan)
        ended_s[list(aborted_s)] = list(aborted_s.values())
        columns["aborted_s"] = ended_s.round(_ROUND_DIGITS)
    sent = times.status != Status.NOT_SENT
    return columns if sent.all() else {name: column[sent] for name, column in columns.items()}


def step_columns(recorder: Recorder) -> Columns:
    """One row for every step of every replica, in the order in which they ended; `end_s` is that end."""
    parts: list[Columns] = []
    for replica, log in enumerate(recorder.steps):
        start_s, end_s, counts = log.kept()
        kept_end_s = end_s[: len(start_s)]
        columns: Columns = {
            "end_s": kept_end_s.round(_ROUND_DIGITS),
            "replica": np.full(len(start_s), replica),
            "step_time_s": (kept_end_s - start_s).round(_ROUND_DIGITS),
        }
        columns |= {name: counts[:, i] for i, name in enumerate(STEP_FIELDS[2:-1])}
        columns["bound"] = np.array(BOUNDS, dtype=object)[counts[:, -1]]
        parts.append(columns)
    if len(parts) == 1:
        return parts[0]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((whole["replica"], whole["end_s"]))
    return {name: column[order] for name, column in whole.items()}


def preemption_columns(
    stalls: Sequence[Sequence[tuple[int, float, float]]], tokens: TokenTimes, end_s: Sequence[Floats]
) -> Columns:
    """One row for each preemption, in order of time: request, replica, `preempted_s`, `resumed_s`, and
    `next_token_s`, when the request had the next token after that; NaN where it did not come.

    `stalls` and `end_s` have an entry for each replica: its preemptions, and the end times of its steps (s).
    """
    first = np.searchsorted(tokens.request, [stall[0] for of in stalls for stall in of], side="left")
    rows, at = [], 0
    for replica, of in enumerate(stalls):
        for request_id, preempted_s, resumed_s in of:
            next_token_s, run = float("nan"), int(first[at])
            at += 1
            while run < len(tokens.request) and tokens.request[run] == request_id:
                if tokens.last_s[run] > resumed_s:
                    start = tokens.first_step[run]
                    ends = end_s[tokens.replica[run]][start : start + tokens.num_steps[run]]
                    next_token_s = float(ends[np.searchsorted(ends, resumed_s, side="right")])
                    break
                run += 1
            rows.append((request_id, replica, preempted_s, resumed_s, next_token_s))
    request_ids, replicas, *times_s = zip(*rows, strict=True) if rows else ((),) * 5
    columns: Columns = {
        "request_id": np.array(request_ids, dtype=np.int64),
        "replica": np.array(replicas, dtype=np.int64),
    }
    for name, values in zip(("preempted_s", "resumed_s", "next_token_s"), times_s, strict=True):
        columns[name] = np.array(values, dtype=np.float64)
    order = np.lexsort((columns["request_id"], columns["preempted_s"]))
    return {
        name: column[order] if column.dtype.kind == "i" else column[order].round(_ROUND_DIGITS)
        for name, column in columns.items()
    }


def frame(columns: Columns) -> pd.DataFrame:
    """The columns as pandas has tables."""
    import pandas as pd

    return pd.DataFrame(columns)


def write_csv(columns: Columns, path: Path) -> None:
    """Write the very bytes that pandas would write, a stretch of rows at a time: steps come in millions."""
    length = len(next(iter(columns.values())))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, length, _CHUNK):
            chunk = (_cells(column[start : start + _CHUNK]) for column in columns.values())
            writer.writerows(zip(*chunk, strict=True))


def _cells(values: np.ndarray) -> list[Any]:
    """The values as Python's own, None (which leaves a cell empty) for NaN."""
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f" and np.isnan(values).any():
        return [None if cell != cell else cell for cell in cells]
    return cells


Cut = tuple[float, ...]
"""A preemption (s): when it came, when the request was scheduled again, when it had its next token."""
Span = tuple[str, float, float]
"""Kind, start and end (s)."""


MOMENTS = ("arrival_s", "first_scheduled_s", "first_token_s", "last_token_s")


def last_moment(requests: pd.DataFrame) -> float:
    """The last time (s) at which anything is known to have happened to any request."""
    known = [*MOMENTS, "aborted_s"] if "aborted_s" in requests else list(MOMENTS)
    moments = requests[known].max().dropna()
    return float(moments.max()) if len(moments) else 0.0


def request_ends(requests: pd.DataFrame, now_s: float) -> pd.Series[float]:
    """When each request left (s): its last token, its abort, its arrival if it was refused, else `now_s`.

    An abort of which no time is known counts from the last thing that happened to the request.
    """
    status = requests["status"]
    aborted_s = requests["aborted_s"] if "aborted_s" in requests else requests[list(MOMENTS)].max(axis=1)
    ends = requests["last_token_s"].where(status.eq("finished"), now_s)
    ends = ends.where(~status.eq("aborted"), aborted_s)
    return ends.where(~status.eq("rejected"), requests["arrival_s"])


def request_spans(
    arrival_s: float, scheduled_s: float, first_s: float, until_s: float, cuts: Sequence[Cut]
) -> Iterator[Span]:
    """What one request did until `until_s`; times that never came are NaN.

    `cuts` are its preemptions in order: when preempted, when resumed, when it had its next token. One that
    comes before that token ends the recomputation.
    """
    if not scheduled_s <= until_s:
        yield "queued", arrival_s, until_s
        return
    yield "queued", arrival_s, scheduled_s
    first_s = first_s if first_s <= until_s else until_s
    begins = [*(cut[0] for cut in cuts[1:]), inf][: len(cuts)]
    for kind, from_s, to_s in (("prefill", scheduled_s, first_s), ("decode", first_s, until_s)):
        at = from_s
        for cut, next_cut_s in zip(cuts, begins, strict=True):
            if from_s <= cut[0] < to_s:
                preempted_s, resumed_s, next_token_s = (
                    until_s if isnan(moment) else min(moment, until_s) for moment in cut
                )
                if at < preempted_s:
                    yield kind, at, preempted_s
                yield "preempted", preempted_s, resumed_s
                at = min(next_token_s, next_cut_s)
                if resumed_s < at:
                    yield "recompute", resumed_s, at
        if at < to_s:
            yield kind, at, to_s


def preemption_cuts(stalls: pd.DataFrame | None) -> dict[int, list[Cut]]:
    """The preemptions of each request, in order of time; `stalls` has the columns of `preemptions.csv`."""
    found: dict[int, list[Cut]] = {}
    if stalls is not None:
        table = stalls.sort_values("preempted_s")
        moments = table[["preempted_s", "resumed_s", "next_token_s"]].to_numpy(dtype=float)
        for request_id, cut in zip(table["request_id"].to_numpy(), moments, strict=True):
            found.setdefault(int(request_id), []).append(tuple(cut))
    return found
