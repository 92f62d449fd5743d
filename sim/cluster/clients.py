"""The clients: they send requests in order, hold sessions, and wait only so long.

Requests are sent by the clock (open loop), by free slots (closed loop), or by both. With `max_concurrency` a
request also waits for a free slot in the client: in a closed loop that is its only trigger; with timed
arrivals it is the client-side cap of `vllm bench serve --max-concurrency`, and the wait counts in no server
latency. A session takes one slot from its first turn to its last; each later turn is sent when the answer
before it has ended and its user has thought.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from math import inf

import numpy as np
import numpy.typing as npt
from simpy import Event

from scheduler import Request
from sim.cluster.clock import Clock, LateEvent, late_timeout
from sim.workload import Client, RequestTable, Workload

_CHUNK = 4096


class LoadGenerator:
    """Calls `send(request_id, due_s)` for each of its requests when it leaves the client.

    `next_turn[row]` is the turn that follows a turn, -1 if none does; None where there are no sessions.
    """

    def __init__(
        self,
        env: Clock,
        table: RequestTable,
        client: Client,
        send: Callable[[int, float], None],
        next_turn: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.num_sent = 0
        self.num_in_flight = 0
        """Requests, or sessions, under way."""
        self._env = env
        self._table = table
        self._client = client
        self._send_request = send
        self._next_turn = next_turn
        self._slot: LateEvent | None = None

    def run(self) -> Generator[Event, object, None]:
        """The SimPy process; ends when everything is sent but later turns of sessions."""
        env, limit = self._env, self._client.max_concurrency
        for request_id, due_s in self._due():
            if due_s > env.now:
                yield late_timeout(env, due_s - env.now)
            while limit is not None and self.num_in_flight >= limit:
                self._slot = LateEvent(env)
                yield self._slot
            self.num_in_flight += 1
            self._send(request_id, due_s)

    def on_end(self, request_id: int, *, served: bool) -> None:
        """A request has ended; `served`: with a whole answer. Its session goes on, or its slot is free."""
        if self._next_turn is not None and (served or not self._client.leaves):
            follower = int(self._next_turn[request_id])
            if follower >= 0:
                self._send_later(follower)
                return
        self.num_in_flight -= 1
        if self._slot is not None:
            self._slot.succeed()
            self._slot = None

    def _send(self, request_id: int, due_s: float) -> None:
        self.num_sent += 1
        self._send_request(request_id, due_s)

    def _send_later(self, request_id: int) -> None:
        """The next turn of a session: after the user's thinking, and not before its own time."""
        table, now = self._table, self._env.now
        assert table.think_s is not None
        due_s = max(now + float(table.think_s[request_id]), float(table.arrival_s[request_id]))
        late_timeout(self._env, due_s - now, request_id).callbacks.append(self._send_turn)

    def _send_turn(self, event: Event) -> None:
        assert isinstance(event.value, int)
        self._send(event.value, self._env.now)

    def _due(self) -> Iterator[tuple[int, float]]:
        """Request ids and arrival times in order, a chunk of the columns at a time."""
        rows, arrival_s = self._client.rows, self._table.arrival_s
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            yield from zip(chunk.tolist(), arrival_s[chunk].tolist(), strict=True)


class Clients:
    """Calls `send(request_id, due_s)` for what leaves a client, `hang_up(request)` when one waits no longer.

    `hang_up` may come for requests that have ended.
    """

    def __init__(
        self,
        env: Clock,
        workload: Workload,
        send: Callable[[int, float], None],
        hang_up: Callable[[Request], None],
    ) -> None:
        table = workload.table
        next_turn = _next_turns(table.turn_after)
        self._generators = [LoadGenerator(env, table, client, send, next_turn) for client in workload.clients]
        self.have_patience = table.timeout_s is not None or table.first_token_timeout_s is not None
        self._env = env
        self._first_token_timeout_s = table.first_token_timeout_s
        self._timeout_s = table.timeout_s
        self._hang_up = hang_up
        self._owners = _owners(workload, next_turn)

    def processes(self) -> list[Generator[Event, object, None]]:
        """The SimPy processes of the load generators."""
        return [generator.run() for generator in self._generators]

    @property
    def num_sent(self) -> int:
        """Requests that have left a client."""
        return sum(generator.num_sent for generator in self._generators)

    def on_end(self, request_id: int, *, served: bool) -> None:
        """A request has ended; `served`: with a whole answer."""
        owner = 0 if self._owners is None else int(self._owners[request_id])
        self._generators[owner].on_end(request_id, served=served)

    def await_answer(self, request: Request) -> None:
        """A request has been sent: from now on its client's patience runs."""
        if self._first_token_timeout_s is not None:
            self._set_alarm(
                request, float(self._first_token_timeout_s[request.request_id]), self._first_token
            )
        if self._timeout_s is not None:
            self._set_alarm(request, float(self._timeout_s[request.request_id]), self._answer)

    def _set_alarm(self, request: Request, timeout_s: float, callback: Callable[[Event], None]) -> None:
        if timeout_s < inf:
            late_timeout(self._env, timeout_s, request).callbacks.append(callback)

    def _first_token(self, event: Event) -> None:
        assert isinstance(event.value, Request)
        if event.value.num_output_tokens == 0:
            self._hang_up(event.value)

    def _answer(self, event: Event) -> None:
        assert isinstance(event.value, Request)
        self._hang_up(event.value)


def _next_turns(turn_after: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64] | None:
    """The row of the turn that follows each row, -1 for none; None if there are no sessions."""
    if turn_after is None:
        return None
    following = np.full(len(turn_after), -1)
    later = np.flatnonzero(turn_after >= 0)
    following[turn_after[later]] = later
    return following


def _owners(workload: Workload, next_turn: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int16] | None:
    """The number of the client that sends each row, None if there is only one; a session has one client."""
    if len(workload.clients) == 1:
        return None
    owners = np.full(len(workload.table), -1, np.int16)
    for number, client in enumerate(workload.clients):
        rows = client.rows
        while len(rows):
            owners[rows] = number
            rows = np.empty(0, np.int64) if next_turn is None else next_turn[rows]
            rows = rows[rows >= 0]
    return owners
