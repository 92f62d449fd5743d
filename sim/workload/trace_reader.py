"""Opens a trace, plain or gzipped, of any form, and reads it only as far as it is needed."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from sim.errors import Fault, did_you_mean, input_error
from sim.recordings import is_recording
from sim.workload.csv_trace import CsvTrace
from sim.workload.mooncake_trace import MooncakeTrace
from sim.workload.table import FaultLog, TraceRows

_GZIP_MAGIC = b"\x1f\x8b"


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
    if form == "recording" or (form == "auto" and is_recording(Path(path))):
        from sim.workload.recording_trace import recorded_rows  # late: few replay recordings

        pieces, span_s = _read_window(iter([recorded_rows(path)]), window)
        return _joined(pieces, span_s, path)
    log = FaultLog(path)
    with open_trace(Path(path), named) as lines:
        trace = _open_form(lines, form, block_tokens, log)
        pieces, span_s = _read_window(iter(trace), window)
    log.raise_if_any()
    rows = _joined(pieces, span_s, path)
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


def _joined(pieces: list[TraceRows], span_s: float, path: str) -> TraceRows:
    """All rows of the pieces; `InputError` if there are none."""
    if not sum(map(len, pieces)):
        said = f"; its times run from 0 to {span_s:g} s" if span_s >= 0 else ""
        raise input_error(f"no request to replay{said}", where=path)
    return _join(pieces)


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


@contextmanager
def open_trace(path: Path, named: Fault) -> Iterator[IO[str]]:
    """The lines of the file as text; `named` has the place and the field of the scenario that name it.

    `InputError` for a file that is missing, not readable, not UTF-8 or a broken archive, whenever that shows.
    """
    if "\0" in str(path):
        raise input_error("no file name has a null character in it", where=named.where, path=named.path)
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == _GZIP_MAGIC
        with path.open("rb") as raw:
            plain = gzip.GzipFile(fileobj=raw) if packed else raw
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
    except FileNotFoundError:
        folder = path.parent
        near = did_you_mean(path.name, [file.name for file in folder.iterdir()]) if folder.is_dir() else ""
        raise input_error(f"no such file: {path}{near}", where=named.where, path=named.path) from None
    except IsADirectoryError:
        raise input_error(f"is a folder: {path}", where=named.where, path=named.path) from None
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text ({error.reason})", where=str(path)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise input_error(f"broken gzip file: {error}", where=str(path)) from None
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror or error}", where=str(path)) from None
