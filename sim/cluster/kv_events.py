"""A run's KV events as JSON lines, one an event: what a router that subscribes to the engines would get.

Each line has `time_s` (when the update told it, to the nanosecond), `replica`, `step` (the replica's latest
in `steps.csv`) and `event`: its `type` and fields as vLLM names them (see `scheduler.kv_events`).
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.kv_events import KVCacheEvent, KVEventsObserver
from sim.errors import writing


class KVEventsFile:
    """The file, compressed if its name ends in `.gz`. `InputError` if it cannot be written."""

    def __init__(self, path: Path) -> None:
        with writing(path):
            raw = path.open("wb")
        self._path = path
        self._raw = raw
        self._packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        self._text = io.TextIOWrapper(self._packed or raw, encoding="utf-8", newline="\n")

    def observer(self, replica: int, now_s: Callable[[], float], step: Callable[[], int]) -> KVEventsObserver:
        """What to observe a replica's engine with; `now_s` and `step` are asked when events come."""

        def write(events: Sequence[KVCacheEvent]) -> None:
            place = {"time_s": round(now_s(), 9), "replica": replica, "step": step()}
            with writing(self._path):
                for event in events:
                    line = json.dumps({**place, "event": event.as_wire()}, separators=(",", ":"))
                    self._text.write(line + "\n")

        return write

    def close(self) -> None:
        """All events have been told."""
        with writing(self._path):
            self._text.close()
            self._raw.close()
