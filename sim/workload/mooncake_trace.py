"""Reads the JSON-lines form of Mooncake: times in ms, lengths, and the ids of the prompt's blocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from sim.errors import did_you_mean
from sim.scenario.section import MAX_REQUEST_TOKENS
from sim.workload.table import FaultLog, TraceRows

PIECE_ROWS = 1 << 14
_REQUIRED = ("timestamp", "input_length", "output_length")
_MAX_HASH_ID = 1 << 40


class _RepeatedError(ValueError):
    """A key that an object has twice."""


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(next(name for name in names if names.count(name) > 1))
    return data


class MooncakeTrace:
    """An open Mooncake trace. Iterate over it for its rows, a piece at a time; faults gather in `log`."""

    def __init__(self, lines: Iterable[str], block_tokens: int, log: FaultLog) -> None:
        self.log = log
        self.notes: list[str] = []
        self._lines = enumerate(lines, start=1)
        self._block_tokens = block_tokens
        self._first_ms: float | None = None

    def __iter__(self) -> Iterator[TraceRows]:
        empty = True
        while numbered := list(islice(self._lines, PIECE_ROWS)):
            records = [(line, self._record(line, text)) for line, text in numbered if text.strip()]
            empty = empty and not records
            yield self._piece([(line, record) for line, record in records if record is not None])
        if empty:
            self.log.add(1, None, "the file is empty")

    def _record(self, line: int, text: str) -> tuple[float, int, int, list[int]] | None:
        """Time in ms, two lengths and block ids; None if there is a fault in them."""
        before = self.log.count
        try:
            data = json.loads(text, object_pairs_hook=_without_repeats)
        except _RepeatedError as error:
            self.log.add(line, str(error), "given twice")
            return None
        except (ValueError, RecursionError) as error:
            self.log.add(line, None, f"not a JSON object on a line of its own: {error}")
            return None
        if not isinstance(data, dict):
            self.log.add(line, None, "must be a JSON object")
            return None
        for name in _REQUIRED:
            if name not in data:
                self.log.add(line, name, f"is missing{did_you_mean(name, data)}")
            elif said := _number_fault(data[name], is_time=name == "timestamp"):
                self.log.add(line, name, f"{said} (got {data[name]!r})")
        hash_ids = data.get("hash_ids", [])
        if not isinstance(hash_ids, list) or not all(
            type(each) is int and 0 <= each < _MAX_HASH_ID for each in hash_ids
        ):
            self.log.add(line, "hash_ids", "must be a list of whole numbers from 0")
        elif self.log.count == before and hash_ids:
            needed = -(-int(data["input_length"]) // self._block_tokens)
            if len(hash_ids) != needed:
                self.log.add(
                    line,
                    "hash_ids",
                    f"{len(hash_ids)} ids, but {data['input_length']} tokens need {needed} blocks",
                )
        if self.log.count > before:
            return None
        return float(data["timestamp"]), int(data["input_length"]), int(data["output_length"]), hash_ids

    def _piece(self, records: list[tuple[int, tuple[float, int, int, list[int]]]]) -> TraceRows:
        count = len(records)
        time_ms = np.array([record[0] for _, record in records], np.float64)
        if self._first_ms is None and count:
            self._first_ms = float(time_ms[0])
        num_hashes = np.array([len(record[3]) for _, record in records], np.int64)
        return TraceRows(
            line=np.array([line for line, _ in records], np.int64),
            time_s=(time_ms - (self._first_ms or 0.0)) / 1000,
            prompt_tokens=np.array([record[1] for _, record in records], np.int64),
            output_tokens=np.array([record[2] for _, record in records], np.int64),
            classes=np.full(count, -1, np.int64),
            sessions=np.full(count, -1, np.int64),
            priority=np.zeros(count, np.int64),
            hash_ids=np.array([each for _, record in records for each in record[3]], np.int64),
            num_hashes=num_hashes,
        )


def _number_fault(value: object, *, is_time: bool) -> str | None:
    """What is wrong with a time or a number of tokens."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "is not a number"
    if not -1e15 < value < 1e15:  # catches NaN, too
        return "must be a finite number"
    if is_time:
        return "must not be negative" if value < 0 else None
    if value != int(value):
        return "must be a whole number"
    return None if 1 <= value <= MAX_REQUEST_TOKENS else f"must be 1 to {MAX_REQUEST_TOKENS}"
