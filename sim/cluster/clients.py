"""All clients of a run: their load generators, the sessions they hold, and how long they wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf

import numpy as np
import numpy.typing as npt
from simpy import Event

from scheduler import Request
from sim.cluster.clock import Clock, late_timeout
from sim.cluster.load_generator import LoadGenerator
from sim.workload import Workload


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
