"""The client: sends requests in order, by the clock (open loop), by free slots (closed loop), or by both.

One process for the whole workload. With `max_concurrency` a request also waits for a free slot in the client:
in a closed loop that is its only trigger; with timed arrivals it is the client-side cap of `vllm bench serve
--max-concurrency`, and the wait counts in no server latency.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from simpy import Environment, Event

from sim.cluster.clock import LateEvent, late_timeout
from sim.workload import RequestTable

_CHUNK = 4096


class LoadGenerator:
    """Calls `send(request_id, due_s)` for requests 0, 1, 2 … of the table, each when it leaves the client."""

    def __init__(
        self,
        env: Environment,
        table: RequestTable,
        max_concurrency: int | None,
        send: Callable[[int, float], None],
    ) -> None:
        self.num_sent = 0
        self.num_in_flight = 0
        self._env = env
        self._table = table
        self._limit = max_concurrency
        self._send = send
        self._slot: LateEvent | None = None

    def run(self) -> Generator[Event, object, None]:
        """The SimPy process; ends when everything is sent."""
        env, limit = self._env, self._limit
        for request_id, due_s in enumerate(self._due_times()):
            if due_s > env.now:
                yield late_timeout(env, due_s - env.now)
            while limit is not None and self.num_in_flight >= limit:
                self._slot = LateEvent(env)
                yield self._slot
            self.num_sent += 1
            self.num_in_flight += 1
            self._send(request_id, due_s)

    def on_end(self) -> None:
        """A request has ended, one way or another: its slot is free."""
        self.num_in_flight -= 1
        if self._slot is not None:
            self._slot.succeed()
            self._slot = None

    def _due_times(self) -> Iterator[float]:
        """Arrival times in order, a chunk of the column at a time."""
        column = self._table.arrival_s
        for start in range(0, len(column), _CHUNK):
            yield from column[start : start + _CHUNK].tolist()
