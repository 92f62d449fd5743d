"""The thread that writes a recording: it takes notes from a bounded queue and makes lines of them."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter, sleep, strftime
from typing import Any, BinaryIO

from .lines import Lines

SUFFIX = ".jsonl.gz"

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

_WAKES_EVERY_S = 0.05
_FLUSHES_EVERY_S = 1.0
_CLOSES_WITHIN_S = 10.0


@dataclass(frozen=True)
class Limits:
    """Where a recording goes, and where it ends."""

    path: Path
    max_bytes: float
    max_s: float
    max_queued: int


def limits_of_environment() -> Limits:
    """The limits that the environment gives. `ValueError` if a number is none."""
    given = os.environ.get("DRYSERVE_RECORDING_PATH", "")
    path = Path(given or ".")
    if not given or given.endswith("/") or path.is_dir():
        path = path / f"dryserve-recording-{strftime('%Y%m%d-%H%M%S')}{SUFFIX}"
    if path.exists():  # another engine of this server has it, or an earlier one
        path = path.with_name(f"{path.name.removesuffix(SUFFIX)}-{os.getpid()}{SUFFIX}")
    return Limits(
        path,
        _limit("DRYSERVE_RECORDING_MAX_MB", 200.0) * 1e6,
        _limit("DRYSERVE_RECORDING_MAX_S", inf),
        int(os.environ.get("DRYSERVE_RECORDING_QUEUE", 4096)),
    )


def _limit(name: str, usual: float) -> float:
    limit = float(os.environ.get(name, usual))
    if not limit > 0.0:
        raise ValueError(f"{name} must be above 0")
    return limit


def any_release() -> bool:
    """Whether to record releases that this was not tried with."""
    return os.environ.get("DRYSERVE_RECORDING_ANY_RELEASE", "") not in ("", "0")


class Writer:
    """Writes what is put until a limit is reached, something fails, or it is closed.

    `ended(why)` is called once if it ends by itself, from the writing thread.
    """

    def __init__(self, header: dict[str, Any], limits: Limits, ended: Callable[[str], None]) -> None:
        limits.path.parent.mkdir(parents=True, exist_ok=True)
        self.path = limits.path
        self._limits = limits
        self._ended = ended
        self._queue: deque[tuple[Any, ...]] = deque()
        self._last: tuple[str, str] | None = None
        """The kind of the last line and why it ends there, once nothing more is to come."""
        self._abandoned = False
        self._lines = Lines(perf_counter())
        self._begin = perf_counter()
        self._file: BinaryIO = limits.path.open("xb")
        self._stream = zlib.compressobj(1, zlib.DEFLATED, 31)
        self._written = 0
        self._write([header])
        self._flush()
        self._thread = threading.Thread(target=self._run, name="dryserve-recording", daemon=True)
        self._thread.start()

    def put(self, note: tuple[Any, ...]) -> None:
        """Take a note. It is lost, and the recording ends with a gap, if too many wait."""
        if self._last is not None:
            return
        if len(self._queue) >= self._limits.max_queued:
            self._last = ("gap", f"{self._limits.max_queued} records waited to be written")
            return
        self._queue.append(note)

    def close(self, why: str) -> None:
        """End the recording with what has been put, and wait for it."""
        if self._last is None:
            self._last = ("close", why)
        self._ended = _nothing
        self._thread.join(_CLOSES_WITHIN_S)

    def abandon(self, why: str) -> None:
        """End the recording soon, without waiting."""
        if self._last is None:
            self._last = ("gap", why)
        self._ended = _nothing

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        flushed = perf_counter()
        kind, why = "", ""
        try:
            while not kind:
                last = self._last  # before the queue: what was put before it is written before it
                self._drain()
                now = perf_counter()
                if last is not None:
                    kind, why = last
                elif self._written > self._limits.max_bytes:
                    kind, why = "close", f"{self._limits.max_bytes / 1e6:g} MB are written"
                elif now - self._begin > self._limits.max_s:
                    kind, why = "close", f"{self._limits.max_s:g} s have passed"
                else:
                    if now - flushed > _FLUSHES_EVERY_S:
                        self._flush()
                        flushed = now
                    sleep(_WAKES_EVERY_S)
            self._last = (kind, why)
            self._write([{"k": kind, "why": why}])
        except Exception as error:
            self._last = ("gap", "")
            why = f"{type(error).__name__}: {error}"
        self._queue.clear()
        try:
            self._file.write(self._stream.flush(zlib.Z_FINISH))
            self._file.close()
        except Exception as error:
            why = why or f"{type(error).__name__}: {error}"
        self._ended(why)

    def _drain(self) -> None:
        queue, lines = self._queue, self._lines
        while queue and self._written <= self._limits.max_bytes:
            note = queue.popleft()
            self._write(getattr(lines, note[0])(*note[1:]))
            sleep(0)  # lets the engine's thread go first, should it be waiting for the interpreter

    def _write(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            data = self._stream.compress(_encode(line).encode("ascii") + b"\n")
            if data:
                self._file.write(data)
                self._written += len(data)

    def _flush(self) -> None:
        data = self._stream.flush(zlib.Z_SYNC_FLUSH)
        self._file.write(data)
        self._file.flush()
        self._written += len(data)


def _nothing(_: str) -> None:
    """Nobody wants to know."""
