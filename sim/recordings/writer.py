"""Writes a recording of a simulated engine, in the format that README.md describes."""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from sys import byteorder

from sim.errors import writing
from sim.recordings.reader import FORMAT
from sim.values import Json

Scheduled = tuple[int, int, int]
"""Number of a request, its tokens in the step, and those computed before."""


class RecordingWriter:
    """Writes one file, line by line; times in s. Raises `InputError` if it cannot be written."""

    def __init__(self, path: Path, release: str, scheduler: str, settings: Mapping[str, Json]) -> None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # no name and no time in the file: equal runs give equal bytes
            self._raw = path.open("wb")
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0)
        self.path = path
        self._packed = packed
        self._before: dict[int, tuple[int, int]] = {}
        """Of the latest step: by request its tokens and those computed afterwards."""
        self._classes: dict[int, int] = {}
        head = {"format": FORMAT, "release": release, "scheduler": scheduler}
        self._line({**head, "settings": dict(settings)})

    def add(
        self, number: int, now_s: float, arrival_s: float, prompt_tokens: int, max_tokens: int, **facts: Json
    ) -> None:
        """A request comes; `facts` that are 0 or false are left out."""
        line = {
            "k": "add",
            "r": number,
            "t": _us(now_s),
            "at": arrival_s,
            "n": prompt_tokens,
            "max": max_tokens,
        }
        self._line({**line, **{name: value for name, value in facts.items() if value}})

    def classes(self, number: int, first_block: int, keys: Sequence[int]) -> None:
        """The blocks of a request's text from `first_block` on; equal keys are equal texts."""
        runs: list[list[int]] = []
        for key in keys:
            known = self._classes.setdefault(key, len(self._classes))
            if runs and known == runs[-1][0] + runs[-1][1]:
                runs[-1][1] += 1
            else:
                runs.append([known, 1])
        self._line({"k": "h", "r": number, "from": first_block, "h": runs})

    def step(
        self,
        index: int,
        now_s: float,
        scheduled: Sequence[Scheduled],
        drafts: Mapping[int, int],
        queues: Sequence[int],
        **facts: Json,
    ) -> None:
        """A step is scheduled. `drafts` are to be verified; `queues`: running and waiting requests, and free
        blocks.
        """
        line: dict[str, object] = {"k": "s", "i": index, "t": [_us(now_s), _us(now_s)]}
        line |= _changes(self._before, scheduled)
        self._before = {number: (tokens, before + tokens) for number, tokens, before in scheduled}
        line |= {name: value for name, value in facts.items() if value}
        if drafts:
            line["spec"] = [list(each) for each in drafts.items()]
        self._line(line | dict(zip(("run", "wait", "free"), queues, strict=True)))

    def update(
        self,
        index: int,
        now_s: float,
        sampled: Mapping[int, int],
        drafts: Mapping[int, int],
        queues: Sequence[int],
        **facts: Json,
    ) -> None:
        """The output of a step is applied: tokens from the model by request, and the step's `drafts`."""
        got = [[number, count] for number, count in sampled.items() if count != 1]
        if drafts:
            self._take_back(sampled, drafts)
        if got:
            facts = {"got": got, **facts}
        line: dict[str, object] = {"k": "u", "i": index, "t": [_us(now_s), _us(now_s)]}
        line |= {name: value for name, value in facts.items() if value}
        self._line(line | dict(zip(("run", "wait", "free"), queues, strict=True)))

    def _take_back(self, sampled: Mapping[int, int], drafts: Mapping[int, int]) -> None:
        """Rejected drafts no longer count as computed, in the latest step too."""
        for number, count in sampled.items():
            wrong = drafts.get(number, 0) + 1 - count
            if count and wrong and number in self._before:
                tokens, end = self._before[number]
                self._before[number] = (tokens, end - wrong)

    def tie(self, number: int, rank: float) -> None:
        """Where a request comes among others of equal arrival time."""
        self._line({"k": "tie", "r": number, "tie": rank})

    def finish(self, number: int, now_s: float) -> None:
        """A request is aborted."""
        self._line({"k": "finish", "r": [number], "t": _us(now_s), "as": "FINISHED_ABORTED"})

    def drafts(self, counts: Sequence[tuple[int, int]]) -> None:
        """Drafts that the next step may verify."""
        self._line({"k": "drafts", "n": [list(each) for each in counts]})

    def pause(self, now_s: float, level: int) -> None:
        """Scheduling is paused, or goes on."""
        self._line({"k": "pause", "t": _us(now_s), "level": level})

    def close(self) -> None:
        """The run is over."""
        self._line({"k": "close", "why": "the run ended"})
        with writing(self.path):
            self._packed.close()
            self._raw.close()

    def _line(self, line: Mapping[str, object]) -> None:
        with writing(self.path):
            text = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
            self._packed.write(f"{text}\n".encode())


def blocks_checksum(tables: Iterable[tuple[int, Sequence[Sequence[int]]]]) -> int:
    """The checksum of blocks handed out in a step: numbers of requests, their new blocks in each KV group."""
    numbers = array("i")
    for number, of_request in tables:
        if any(of_request):
            numbers.append(number)
            for table in of_request:
                numbers.append(len(table))
                numbers.extend(table)
    if byteorder == "big":
        numbers.byteswap()
    return zlib.crc32(numbers) if numbers else 0


def _us(seconds: float) -> int:
    return round(1e6 * seconds)


def _changes(before: Mapping[int, tuple[int, int]], scheduled: Sequence[Scheduled]) -> dict[str, object]:
    """Who is scheduled, by what is different from the step before; whole where their order is another."""
    numbers = [each[0] for each in scheduled]
    now = set(numbers)
    kept = [number for number in before if number in now]
    if numbers[: len(kept)] != kept or not kept:
        return {"all": [list(each) for each in scheduled]}
    changes = {
        "off": [number for number in before if number not in now],
        "set": [list(each) for each in scheduled[: len(kept)] if (each[1], each[2]) != before[each[0]]],
        "on": [list(each) for each in scheduled[len(kept) :]],
    }
    return {name: value for name, value in changes.items() if value}
