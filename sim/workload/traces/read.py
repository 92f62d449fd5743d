"""Reads a trace of any form, only as far as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from sim.errors import Fault, input_error
from sim.workload.traces.csv_reader import CsvTrace
from sim.workload.traces.files import open_trace
from sim.workload.traces.json_lines import MooncakeTrace
from sim.workload.traces.rows import FaultLog, TraceRows


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The part of a trace to read: [start_s, end_s) from its first row, and at most `num_requests` rows."""

    start_s: float = 0.0
    end_s: float | None = None
    num_requests: int | None = None


def read_trace(
    path: str, form: str, window: TraceWindow, *, block_tokens: int = 512, named: Fault
) -> TraceRows:
    """The rows of the trace in the window, in order of the file; `form` is "auto" or the name of one.

    Raises `InputError` with all faults of the part that was read (the first twenty, and how many more), or
    when no row is left. `named` has the place and the field of the scenario that name the file.
    """
    log = FaultLog(path)
    with open_trace(Path(path), named) as lines:
        trace = _open_form(lines, form, block_tokens, log)
        pieces, span_s = _read_window(iter(trace), window)
    log.raise_if_any()
    if not sum(map(len, pieces)):
        said = f"; its times run from 0 to {span_s:g} s" if span_s >= 0 else ""
        raise input_error(f"no request to replay{said}", where=path)
    rows = _join(pieces)
    rows.notes = trace.notes
    return rows


def _open_form(lines: IO[str], form: str, block_tokens: int, log: FaultLog) -> CsvTrace | MooncakeTrace:
    """The reader for the form that is given or, for "auto", that the first line shows."""
    head = []
    if form == "auto":
        for text in lines:
            head.append(text)
            if text.strip():
                break
        if head and head[-1].lstrip().startswith("{"):
            form = "mooncake"
    whole: Iterator[str] = chain(head, lines)
    return MooncakeTrace(whole, block_tokens, log) if form == "mooncake" else CsvTrace(whole, form, log)


def _read_window(pieces: Iterator[TraceRows], window: TraceWindow) -> tuple[list[TraceRows], float]:
    """The pieces cut to the window, and the latest time seen; stops once nothing more is wanted."""
    whole = window.start_s == 0 and window.end_s is None
    end_s = np.inf if window.end_s is None else window.end_s
    kept, count, latest_s = [], 0, -1.0
    for piece in pieces:
        if len(piece):
            latest_s = max(latest_s, float(piece.time_s.max()))
            past = bool((piece.time_s >= end_s).all())
            inside = (piece.time_s >= window.start_s) & (piece.time_s < end_s)
            piece = piece if whole else piece.take(np.flatnonzero(inside))
            count += len(piece)
            if past:
                break
        kept.append(piece)
        if window.num_requests is not None and count >= window.num_requests:
            break
    return kept, latest_s


def _join(pieces: list[TraceRows]) -> TraceRows:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    hashed = first.hash_ids is not None
    return TraceRows(
        line=column("line"),
        time_s=column("time_s"),
        prompt_tokens=column("prompt_tokens"),
        output_tokens=column("output_tokens"),
        classes=column("classes"),
        sessions=column("sessions"),
        priority=column("priority"),
        class_names=last.class_names,
        hash_ids=column("hash_ids") if hashed else None,
        num_hashes=column("num_hashes") if hashed else None,
    )
