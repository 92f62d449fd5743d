"""Recordings written by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEADER: dict[str, Any] = {
    "format": "dryserve-recording/1",
    "release": "0.16.0",
    "scheduler": "Scheduler",
    "settings": {"config": {"num_blocks": 100}, "model": "some/model", "gpu": "NVIDIA L4"},
}


def write_lines(path: Path, lines: Sequence[object], header: object = HEADER) -> Path:
    """A recording of these lines; a line that is a string stands as it is."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (header, *lines)]
    path.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    return path


def step(index: int, times_us: tuple[int, int], **fields: object) -> dict[str, object]:
    return {"k": "s", "i": index, "t": times_us, "run": 1, "wait": 0, "free": 90} | fields


def update(index: int, times_us: tuple[int, int], **fields: object) -> dict[str, object]:
    return {"k": "u", "i": index, "t": times_us, "run": 1, "wait": 0, "free": 90} | fields


def add(request: int, **fields: object) -> dict[str, object]:
    return {"k": "add", "r": request, "t": 10, "at": 0.0, "n": 40, "max": 3} | fields
