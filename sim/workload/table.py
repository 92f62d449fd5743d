"""The requests of a run as columns (a million take 40 MB); each prompt is worked out when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sim.errors import Fault, InputError
from sim.scenario.workload import DEFAULT_CLASS
from sim.values import Floats, Ints
from sim.workload.prompts import DistinctPrompts, Prompts, Ranges

MAX_CLASSES = 32_767
"""Bound on the classes of a run: a row has its class as a number of 16 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """One row a request, in order of arrival; the row number is the request id.

    `arrival_s` counts from the start of the run. `rejected` marks requests longer than `max_model_len`: a
    server refuses them on arrival; they must be counted, never served. `session` is -1 for none.

    What only some workloads have is None in the others. `expected_output_tokens` are guesses that come with
    the requests. A turn of a session names the row of the turn before it in `turn_after` (-1: a first turn):
    it is sent `think_s` after that one's end, and not before its own `arrival_s`. `first_token_timeout_s` and
    `timeout_s` count from arrival (inf: never). `adapter` is an index into `adapter_names` (-1: none),
    `grammar` a number (-1: none).
    """

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    class_index: npt.NDArray[np.int16]
    class_names: tuple[str, ...]
    session: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int32]
    rejected: npt.NDArray[np.bool_]
    prompts: Prompts
    expected_output_tokens: npt.NDArray[np.float64] | None = None
    turn_after: npt.NDArray[np.int64] | None = None
    think_s: npt.NDArray[np.float64] | None = None
    first_token_timeout_s: npt.NDArray[np.float64] | None = None
    timeout_s: npt.NDArray[np.float64] | None = None
    adapter: npt.NDArray[np.int32] | None = None
    adapter_names: tuple[str, ...] = ()
    grammar: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        arrival_s: npt.ArrayLike,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        *,
        prompts: Prompts | None = None,
        class_index: npt.ArrayLike = 0,
        class_names: tuple[str, ...] = (DEFAULT_CLASS,),
        session: npt.ArrayLike | None = None,
        priority: npt.ArrayLike | None = None,
        rejected: npt.ArrayLike = False,
        turn_after: npt.NDArray[np.int64] | None = None,
        think_s: npt.NDArray[np.float64] | None = None,
    ) -> RequestTable:
        """A table from plain columns in order of arrival; a single number stands for all rows alike.

        Without `prompts` no two requests share a token. The numbers must fit the types of the columns.
        """
        arrivals_s = np.asarray(arrival_s, np.float64)

        def column(values: npt.ArrayLike, kind: type[np.generic]) -> npt.NDArray[Any]:
            return np.array(np.broadcast_to(np.asarray(values), arrivals_s.shape), kind)

        return cls(
            arrival_s=arrivals_s,
            prompt_tokens=column(prompt_tokens, np.int32),
            output_tokens=column(output_tokens, np.int32),
            class_index=column(class_index, np.int16),
            class_names=class_names,
            session=column(-1 if session is None else session, np.int64),
            priority=column(0 if priority is None else priority, np.int32),
            rejected=column(rejected, np.bool_),
            prompts=DistinctPrompts() if prompts is None else prompts,
            turn_after=turn_after,
            think_s=think_s,
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    def prompt_ranges(self, index: int) -> Ranges:
        """The prompt of request `index` as `((first token id, tokens), …)`; equal ids are equal tokens."""
        return self.prompts.ranges(index, int(self.prompt_tokens[index]))

    def output_start(self, index: int) -> int:
        """The id of the first token that request `index` generates; the others follow it."""
        return self.prompts.output_start(index, int(self.prompt_tokens[index]))


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One load generator.

    `rows` are those that it sends on its own account, in order: first turns, and requests without session.
    At most `max_concurrency` of them, or of their sessions, are under way at a time (None: any number). If it
    `leaves`, a session ends with a turn that is refused or aborted.
    """

    rows: npt.NDArray[np.int64]
    max_concurrency: int | None
    leaves: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The requests, how they are offered, and what was repaired or refused on the way.

    `loop` is "open" when requests come at `arrival_s`, "closed" when the next comes as one ends (`arrival_s`
    is then 0 for all, and rows go in order), "mixed" when there are clients of both kinds. `max_concurrency`
    caps the requests in flight, or the sessions under way, in either loop. `parts` says who sends what; where
    it is empty one client sends everything.
    """

    table: RequestTable
    loop: Literal["open", "closed", "mixed"] = "open"
    max_concurrency: int | None = None
    ignore_eos: bool = False
    notes: list[str] = field(default_factory=list)
    parts: tuple[Client, ...] = ()

    @property
    def clients(self) -> tuple[Client, ...]:
        """The load generators."""
        if self.parts:
            return self.parts
        after = self.table.turn_after
        rows = np.arange(len(self.table)) if after is None else np.flatnonzero(after < 0)
        return (Client(rows, self.max_concurrency),)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can take: the most prompt + output tokens of a request."""

    max_model_len: int


@dataclass(slots=True, eq=False)
class TraceRows:
    """Requests as recorded. `line` is the line of the file; `time_s` counts from the first row of the file.

    `classes` and `sessions` hold a number for each row, -1 for none; `class_names` names the classes. A trace
    with hashed blocks has `hash_ids`, those of all rows on end, and `num_hashes`, how many each row has;
    `block_tokens` is how many tokens one stands for, if the trace says so itself.
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
    block_tokens: int | None = None
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
            block_tokens=self.block_tokens,
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
