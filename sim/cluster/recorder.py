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
from typing import NamedTuple

import numpy as np

from sim.cluster.step_log import StepLog
from sim.values import Floats, Ints

_FLUSH_ROWS = 8192


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
            if len(closed) >= _FLUSH_ROWS:
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
