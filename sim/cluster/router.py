"""Who serves a request: one-method policies that see what a control plane sees, and nothing of the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scheduler import Request


class ReplicaView(Protocol):
    """What a router may read of a replica."""

    @property
    def num_outstanding(self) -> int:
        """Requests sent to the replica that have not ended."""


class Router(Protocol):
    """A routing policy."""

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """Index of the replica that is to serve the request. Called once for each request, on arrival."""


class RoundRobin:
    """Replicas in turn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """The next replica in turn."""
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


class Random:
    """Any replica, all equally likely."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """A replica drawn at random."""
        return int(self._rng.integers(len(replicas)))


class LeastOutstanding:
    """The replica with the fewest requests in flight; of equals the first."""

    def __init__(self, rng: np.random.Generator) -> None:
        pass

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """The least loaded replica."""
        loads = [replica.num_outstanding for replica in replicas]
        return loads.index(min(loads))


class PowerOfTwo:
    """The less loaded of two replicas drawn at random (Mitzenmacher 2001); of equals the first drawn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """The better of two."""
        if len(replicas) == 1:
            return 0
        one = int(self._rng.integers(len(replicas)))
        other = int(self._rng.integers(len(replicas) - 1))
        other += other >= one
        return other if replicas[other].num_outstanding < replicas[one].num_outstanding else one


class SessionAffinity:
    """All turns of a session go where its first went; that, like a request without session, goes to the
    replica with the fewest requests in flight.
    """

    def __init__(self, session: npt.NDArray[np.int64]) -> None:
        """`session[request id]` is a number, -1 for none: it comes with the request, in a header."""
        self._session = session
        self._home: dict[int, int] = {}

    def choose(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """The session's replica."""
        session = int(self._session[request.request_id])
        chosen = self._home.get(session)
        if chosen is None:
            loads = [replica.num_outstanding for replica in replicas]
            chosen = loads.index(min(loads))
            if session >= 0:
                self._home[session] = chosen
        return chosen


ROUTERS: dict[str, Callable[[np.random.Generator], Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding": LeastOutstanding,
    "power_of_two": PowerOfTwo,
}
"""Routing policies by their `kind` in a scenario, all but `session`; each takes the stream `routing`."""


def make_router(kind: str, rng: np.random.Generator, session: npt.NDArray[np.int64]) -> Router:
    """The routing policy of that `kind`; `session` is the number of each request's session, -1 for none."""
    return SessionAffinity(session) if kind == "session" else ROUTERS[kind](rng)
