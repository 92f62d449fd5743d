"""The client: sends requests in order, by the clock (open loop), by free slots (closed loop), or by both.

One process for each workload. With `max_concurrency` a request also waits for a free slot in the client: in a
closed loop that is its only trigger; with timed arrivals it is the client-side cap of `vllm bench serve
--max-concurrency`, and the wait counts in no server latency. A session takes one slot from its first turn to
its last; each later turn is sent when the answer before it has ended and its user has thought.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np
import numpy.typing as npt
from simpy import Event

from sim.cluster.clock import Clock, LateEvent, late_timeout
from sim.workload import Client, RequestTable

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
