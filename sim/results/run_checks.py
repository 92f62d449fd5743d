"""Whether the tables of a run folder are those that a run has written, all of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import Fault

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.json"
REQUESTS, STEPS, PREEMPTIONS = "requests.csv", "steps.csv", "preemptions.csv"
COLUMNS = {
    REQUESTS: "request_id class session replica arrival_s first_scheduled_s first_token_s last_token_s "
    "prompt_tokens output_tokens cached_tokens num_preemptions recomputed_tokens stalled_s status",
    STEPS: "t_s replica step_time_s decode_tokens prefill_tokens recompute_tokens num_running num_waiting "
    "kv_used_blocks kv_cached_blocks num_preemptions bound",
    PREEMPTIONS: "request_id replica preempted_s resumed_s next_token_s",
}
"""What every table must have; some runs have more."""
_TEXTS = ("class", "status", "bound")
_STATUSES = ("in_flight", "finished", "aborted", "rejected")
_ROUNDING_S = 2e-9


def table_faults(table: pd.DataFrame, path: Path) -> Iterator[Fault]:
    """What is wrong with one table: its end, its columns, what they hold."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read(1) != b"\n":
            yield Fault(f"{path}:{len(table) + 1}", None, "is cut short: its last line has no end")
    for name in COLUMNS[path.name].split():
        if name not in table:
            yield Fault(f"{path}:1", name, "missing column")
        elif name not in _TEXTS and len(table) and table[name].dtype.kind not in "iuf":
            yield Fault(str(path), name, "holds something that is not a number")
        elif name == "status" and not (known := table[name].isin(_STATUSES)).all():
            row = int((~known).to_numpy().argmax())
            yield Fault(f"{path}:{row + 2}", name, f"{table[name].iloc[row]!r} is no status of a request")


def row_faults(
    folder: Path, summary: Mapping[str, object], tables: Mapping[str, pd.DataFrame]
) -> Iterator[Fault]:
    """Rows that are missing, because the summary or another table counts more (or fewer) of them.

    `tables` by file name. A run may have kept no steps at all: a table without rows is accepted.
    """
    counts: dict[str, float] = {}
    for key in ("num_requests", "num_not_sent", "num_steps", "warmup_s"):
        value = summary.get(key)
        if not isinstance(value, (int, float)):
            yield Fault(str(folder / SUMMARY), key, "missing or not a number")
            return
        counts[key] = value
    requests, steps = tables[REQUESTS], tables[STEPS]
    sent = int(counts["num_requests"] - counts["num_not_sent"])
    if len(requests) != sent:
        yield _missing(folder / REQUESTS, len(requests), f"{sent:,} requests were sent")
    if len(steps):
        # Times are rounded, so a step that began with the end of the warm-up may lie on either side of it.
        start_s = steps["t_s"] - steps["step_time_s"]
        fewest = int((start_s >= counts["warmup_s"] + _ROUNDING_S).sum())
        most = int((start_s >= counts["warmup_s"] - _ROUNDING_S).sum())
        if not fewest <= counts["num_steps"] <= most:
            said = f"{int(counts['num_steps']):,} steps began after the warm-up"
            yield _missing(folder / STEPS, most, said)
    if PREEMPTIONS in tables:
        preemptions = int(requests["num_preemptions"].sum())
        if len(tables[PREEMPTIONS]) != preemptions:
            said = f"{preemptions:,} preemptions are counted in {REQUESTS}"
            yield _missing(folder / PREEMPTIONS, len(tables[PREEMPTIONS]), said)


def _missing(path: Path, found: int, said: str) -> Fault:
    return Fault(str(path), None, f"is not whole: it has {found:,} rows, but {said}")
