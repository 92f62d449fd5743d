"""What a trace reader hands on: columns in the order of the file, and the faults found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sim.errors import Fault, InputError
from sim.values import Floats, Ints


@dataclass(slots=True, eq=False)
class TraceRows:
    """Requests as recorded. `line` is the line of the file; `time_s` counts from the first row of the file.

    `classes` and `sessions` hold a number for each row, -1 for none; `class_names` names the classes. A trace
    with hashed blocks has `hash_ids`, those of all rows on end, and `num_hashes`, how many each row has.
    """

    line: Ints
    time_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    classes: Ints
    sessions: Ints
    priority: Ints
    class_names: tuple[str, ...] = ()
    hash_ids: Ints | None = None
    num_hashes: Ints | None = None
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: npt.NDArray[np.intp]) -> TraceRows:
        """The given rows, in the given order."""
        hash_ids, num_hashes = self.hash_ids, self.num_hashes
        if hash_ids is not None and num_hashes is not None:
            starts = (np.cumsum(num_hashes) - num_hashes)[rows]
            num_hashes = num_hashes[rows]
            within = np.arange(num_hashes.sum()) - np.repeat(np.cumsum(num_hashes) - num_hashes, num_hashes)
            hash_ids = hash_ids[np.repeat(starts, num_hashes) + within]
        return TraceRows(
            line=self.line[rows],
            time_s=self.time_s[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            classes=self.classes[rows],
            sessions=self.sessions[rows],
            priority=self.priority[rows],
            class_names=self.class_names,
            hash_ids=hash_ids,
            num_hashes=num_hashes,
            notes=self.notes,
        )


MAX_SHOWN = 20


class FaultLog:
    """Faults of one file: keeps the first ones of each kind and counts them all."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0
        self._kept: list[tuple[int, Fault]] = []

    def add(self, line: int, column: str | None, message: str) -> None:
        """One fault at a line (counted from 1)."""
        self.count += 1
        if len(self._kept) < 1000:
            self._kept.append((line, Fault(f"{self.file}:{line}", column, message)))

    def add_where(
        self, wrong: npt.NDArray[np.bool_], lines: Ints, column: str | None, message: Callable[[int], str]
    ) -> None:
        """One fault for each row marked `wrong`; `message` tells it for a row number."""
        rows = np.flatnonzero(wrong)
        for row in rows[:MAX_SHOWN].tolist():
            self.add(int(lines[row]), column, message(row))
        self.count += max(0, len(rows) - MAX_SHOWN)

    def raise_if_any(self) -> None:
        """Raise an `InputError` with the first faults in order of lines, and how many more there are."""
        if self.count:
            raise InputError(self._listing())

    def _listing(self) -> Iterator[Fault]:
        kept = sorted(self._kept, key=lambda numbered: numbered[0])[:MAX_SHOWN]
        yield from (fault for _, fault in kept)
        if self.count > len(kept):
            yield Fault(self.file, None, f"and {self.count - len(kept):,} more")
