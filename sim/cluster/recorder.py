"""What a run leaves behind: growable columns of steps, requests and token runs, no object per token.

Replicas write here while the clock runs; `sim.results.metrics` and `sim.simulation` read afterwards. The
times of a request's tokens are not stored one by one: a request that gets a token in each of the steps
17..316 of its replica is the run `(17, 300)`, and its token times are the end times of those steps, looked
up with numpy after the run. So steady decode costs the recorder nothing per token, and a planner may append
many steps at once.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from math import nan
from struct import pack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.step_cost import BOUNDS
from sim.values import Floats, Ints

STEP_FIELDS = (
    "start_s",
    "end_s",
    "decode_tokens",
    "prefill_tokens",
    "recompute_tokens",
    "num_running",
    "num_waiting",
    "kv_used_blocks",
    "kv_cached_blocks",
    "num_preemptions",
    "bound",
)
"""One row of a `StepLog`, in order. Counts are as of the schedule() call that made the step; `bound` is an
index into `cost_models.BOUNDS`."""

StepCounts = tuple[int, int, int, int, int, int, int, int, int]
"""The columns of a step from `decode_tokens` on."""

_LIST_ROWS = 512
_FLUSH_ROWS = 8192
_COUNTS = len(STEP_FIELDS) - 2


class StepTotals(NamedTuple):
    """Sums over the measured steps (those that began at or after the end of the warm-up) of one replica."""

    busy_s: float
    time_by_bound_s: Floats
    time_by_used_blocks_s: Floats
    time_by_num_running_s: Floats
    decode_tokens: int
    prefill_tokens: int
    recompute_tokens: int
    num_preemptions: int
    num_steps: int


def add_histograms(one: Floats, other: Floats) -> Floats:
    """The sum of two histograms over 0, 1, 2 …, as long as the longer one."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    total = long.astype(np.float64)
    total[: len(short)] += short
    return total


def histogram(values: NDArray[np.integer[Any]], weights: Floats) -> Floats:
    """Sum of the weights of each value 0, 1, 2 …"""
    return np.bincount(values, weights=weights).astype(np.float64, copy=False)


class StepLog:
    """The steps of one replica, in the order in which they ended.

    Columns gather in short lists, move to arrays while they are in the processor's cache, and to numpy every
    few thousand steps; what is the same in all steps of a piece (those added by one call) is noted once. End
    times are always kept (token times need them, 8 bytes a step); the other columns only when `keep` is
    true. Totals are summed as steps pass.
    """

    def __init__(self, *, keep: bool = True, warmup_s: float = 0.0) -> None:
        self.num_steps = 0
        self._keep = keep
        self._warmup_s = warmup_s
        self._start_s: list[float] = []
        self._end_s: list[float] = []
        self._used: list[int] = []
        self._cached: list[int] = []
        self._bound: list[int] = []
        self._piece_steps: list[int] = []
        self._decode: list[int] = []
        self._prefill: list[int] = []
        self._recompute: list[int] = []
        self._running: list[int] = []
        self._waiting: list[int] = []
        self._preempted: list[int] = []
        by_step = (self._start_s, self._end_s, self._used, self._cached, self._bound)
        by_piece = (self._decode, self._prefill, self._recompute, self._running, self._waiting)
        self._lists: list[list[Any]] = [*by_step, self._piece_steps, *by_piece, self._preempted]
        self._arrays: list[array[Any]] = [array("d"), array("d"), *(array("i") for _ in self._lists[2:])]
        self._num_pending = 0
        self._ends: list[Floats] = []
        self._starts: list[Floats] = []
        self._counts: list[NDArray[np.int32]] = []
        self._last_end_s = 0.0
        self._sums = np.zeros(4, dtype=np.int64)
        self._measured = 0
        self._by_bound = np.zeros(len(BOUNDS))
        self._by_used = np.zeros(1)
        self._by_running = np.zeros(1)

    def append(self, start_s: float, end_s: float, counts: StepCounts) -> None:
        """Add one step."""
        decode, prefill, recompute, running, waiting, used, cached, preempted, bound = counts
        self._start_s.append(start_s)
        self._end_s.append(end_s)
        self._used.append(used)
        self._cached.append(cached)
        self._bound.append(bound)
        self._note_piece(1, decode, prefill, recompute, running, waiting, preempted)

    def extend_decodes(
        self,
        start_s: list[float],
        end_s: list[float],
        used_blocks: list[int],
        cached_blocks: list[int],
        bounds: list[int],
        counts: tuple[int, int, int],
    ) -> None:
        """Add steps in a row that differ in these columns alone, one entry a step in each.

        `counts`: decode tokens, running and waiting requests of every step. They preempt nobody and compute
        nothing else.
        """
        if not end_s:
            return
        self._start_s.extend(start_s)
        self._end_s.extend(end_s)
        self._used.extend(used_blocks)
        self._cached.extend(cached_blocks)
        self._bound.extend(bounds)
        decode, running, waiting = counts
        self._note_piece(len(end_s), decode, 0, 0, running, waiting, 0)

    def _note_piece(
        self,
        num_steps: int,
        decode: int,
        prefill: int,
        recompute: int,
        running: int,
        waiting: int,
        preempted: int,
    ) -> None:
        self._piece_steps.append(num_steps)
        self._decode.append(decode)
        self._prefill.append(prefill)
        self._recompute.append(recompute)
        self._running.append(running)
        self._waiting.append(waiting)
        self._preempted.append(preempted)
        self.num_steps += num_steps
        self._num_pending += num_steps
        if len(self._end_s) >= _LIST_ROWS:
            self._gather()
            while self._num_pending >= _FLUSH_ROWS:
                self._flush(_FLUSH_ROWS)

    def _gather(self) -> None:
        for column, values in zip(self._arrays, self._lists, strict=True):
            column.frombytes(pack(f"{len(values)}{column.typecode}", *values))  # by far the quickest way
            values.clear()

    def _flush(self, num_steps: int) -> None:
        """Move the first steps out of the lists: always as many at a time, so that sums round alike."""
        if not num_steps:
            return
        starts, ends, used, cached, bound, pieces, *by_piece, preempted = self._arrays
        steps = _cut(pieces, num_steps)
        counts = np.empty((num_steps, _COUNTS), dtype=np.int32)
        for place, column in (*enumerate(by_piece), (7, preempted)):
            counts[:, place] = np.repeat(np.array(column[: len(steps)]), steps)
        for place, column in ((5, used), (6, cached), (8, bound)):
            counts[:, place] = column[:num_steps]
        start_s, end_s = np.array(starts[:num_steps]), np.array(ends[:num_steps])
        last = len(steps) - 1
        pieces[last] -= steps[last]
        for column in (*by_piece, preempted, pieces):
            del column[: last if pieces[last] else last + 1]
        for column in (starts, ends, used, cached, bound):
            del column[:num_steps]
        self._num_pending -= num_steps
        # Steps of pipeline stages overlap; the time a step adds is what passes after the one before it ended.
        previous_s = np.concatenate(([self._last_end_s], end_s[:-1]))
        self._last_end_s = float(end_s[-1])
        measured = start_s >= self._warmup_s
        took_s = (end_s - np.maximum(start_s, previous_s))[measured]
        of_measured = counts[measured]
        self._measured += len(of_measured)
        self._sums += of_measured[:, [0, 1, 2, 7]].sum(axis=0, dtype=np.int64)
        self._by_bound = add_histograms(self._by_bound, histogram(of_measured[:, 8], took_s))
        self._by_used = add_histograms(self._by_used, histogram(of_measured[:, 5], took_s))
        self._by_running = add_histograms(self._by_running, histogram(of_measured[:, 3], took_s))
        self._ends.append(end_s)
        if self._keep:
            self._starts.append(start_s)
            self._counts.append(counts)

    def end_s(self) -> Floats:
        """End time of each step, s, shape (num_steps,): when its tokens appeared."""
        self._gather()
        self._flush(self._num_pending)
        self._ends = [np.concatenate(self._ends) if self._ends else np.empty(0)]
        return self._ends[0]

    def kept(self) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """Start times, end times and the integer columns (steps, 9); all empty if steps were not kept."""
        end_s = self.end_s()
        if not self._starts:
            return np.empty(0), np.empty(0), np.empty((0, _COUNTS), dtype=np.int32)
        return np.concatenate(self._starts), end_s, np.concatenate(self._counts)

    def totals(self) -> StepTotals:
        """The sums so far; times in seconds, by number of blocks in use and of requests running."""
        self._gather()
        self._flush(self._num_pending)
        decode, prefill, recompute, preemptions = (int(n) for n in self._sums)
        busy_s = float(self._by_bound.sum())
        return StepTotals(
            busy_s,
            self._by_bound,
            self._by_used,
            self._by_running,
            decode,
            prefill,
            recompute,
            preemptions,
            self._measured,
        )


def _cut(pieces: array[int], num_steps: int) -> list[int]:
    """How many of the first steps each piece has; the last piece may have more."""
    steps: list[int] = []
    while num_steps:
        steps.append(min(pieces[len(steps)], num_steps))
        num_steps -= steps[-1]
    return steps


_BLOCK_ROWS = 8192


class Status(IntEnum):
    """How a request stands; each that arrives ends as exactly one of the last four."""

    NOT_SENT = 0
    IN_FLIGHT = 1
    FINISHED = 2
    ABORTED = 3
    REJECTED = 4


class StepRuns:
    """Which steps of one replica gave a token to which request, as runs of consecutive step numbers.

    A step gives a request at most one burst of tokens (one, or several under speculation); a run counts
    bursts.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._closed: list[int] = []
        """Request, first step and number of steps of each closed run, one after the other."""
        self._columns = array("i")

    def on_step(self, step: int, request_ids: list[int], num_unnamed: int = 0) -> bool:
        """Note who got a token in this step: open the runs of `request_ids`.

        False if others had open runs than these and `num_unnamed` requests whose runs go on: see
        `close_others`.
        """
        open_runs = self._open
        for request_id in request_ids:
            if request_id not in open_runs:
                open_runs[request_id] = step
        return len(open_runs) <= len(request_ids) + num_unnamed

    def close_others(self, step: int, request_ids: set[int]) -> None:
        """Nobody but `request_ids` got a token in this step: end the runs of all others."""
        for request_id in [r for r in self._open if r not in request_ids]:
            self.close(request_id, step)

    def close(self, request_id: int, next_step: int) -> None:
        """End the run of a request, if one is open: its last token came in the step before `next_step`."""
        first_step = self._open.pop(request_id, None)
        if first_step is not None:
            closed = self._closed
            closed.append(request_id)
            closed.append(first_step)
            closed.append(next_step - first_step)
            if len(closed) >= _BLOCK_ROWS:
                self._flush()

    def _flush(self) -> None:
        self._columns.frombytes(pack(f"{len(self._closed)}i", *self._closed))
        self._closed.clear()

    def close_all(self, next_step: int) -> None:
        """End every open run, as at a horizon."""
        for request_id in list(self._open):
            self.close(request_id, next_step)

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Request id, first step and number of steps of each closed run."""
        self._flush()
        rows = np.array(self._columns, dtype=np.int64).reshape(-1, 3)
        return rows[:, 0], rows[:, 1], rows[:, 2]


class RequestLog:
    """One slot a request of the workload, by request id; times in s, NaN where nothing happened."""

    def __init__(self, num_requests: int) -> None:
        times, counts = array("d", [nan]) * num_requests, array("i", [0]) * num_requests
        self.arrival_s = times[:]
        self.first_scheduled_s = times[:]
        self.stalled_s = array("d", [0.0]) * num_requests
        self.client_queue_s = array("d", [0.0]) * num_requests
        self.replica = array("i", [-1]) * num_requests
        self.output_tokens = counts[:]
        self.extra_tokens = counts[:]
        """Of these, those that came in one burst with the token before."""
        self.cached_tokens = counts[:]
        self.num_preemptions = counts[:]
        self.recomputed_tokens = counts[:]
        self.status = array("b", [Status.NOT_SENT]) * num_requests


class TokenTimes(NamedTuple):
    """Runs of all replicas with the times of their ends: enough for every gap, without listing tokens."""

    request: Ints
    replica: Ints
    first_step: Ints
    num_steps: Ints
    first_s: Floats
    last_s: Floats


class Recorder:
    """All that a run writes: one `RequestLog`, and a `StepLog` and `StepRuns` for each replica."""

    def __init__(
        self, num_requests: int, num_replicas: int, *, keep_steps: bool = True, warmup_s: float = 0.0
    ) -> None:
        self.requests = RequestLog(num_requests)
        self.steps = [StepLog(keep=keep_steps, warmup_s=warmup_s) for _ in range(num_replicas)]
        self.runs = [StepRuns() for _ in range(num_replicas)]

    def close(self) -> None:
        """End the runs that a horizon left open. Call once, after the clock stopped."""
        for log, runs in zip(self.steps, self.runs, strict=True):
            runs.close_all(log.num_steps)

    def token_times(self) -> TokenTimes:
        """Every run with the times of its first and last token, ordered by request and then by time."""
        parts = []
        for replica, (log, runs) in enumerate(zip(self.steps, self.runs, strict=True)):
            end_s = log.end_s()
            request, first_step, num_steps = runs.columns()
            first_s, last_s = end_s[first_step], end_s[first_step + num_steps - 1]
            parts.append((request, np.full(len(request), replica), first_step, num_steps, first_s, last_s))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.lexsort((columns[4], columns[0]))
        return TokenTimes(*(column[order] for column in columns))
