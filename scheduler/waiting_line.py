"""The waiting line: one queue, or one for requests that hold blocks and one for the rest.

A scheduling pass looks at the head of the line, takes it, or sets it aside and looks at the next; at the end
of the pass what was set aside returns. In early releases there is one queue. Later ones serve requests that
hold blocks first, so that no holder can be stuck behind a request that waits for those very blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator

from scheduler.queues import RequestQueue
from scheduler.request import Request
from scheduler.status import RequestStatus


class WaitingLine(ABC):
    """What the engine asks of its waiting requests."""

    def __init__(self, make_queue: Callable[[], RequestQueue]) -> None:
        self.size = 0
        """How many requests wait, also those set aside in the pass under way."""
        self.ordinary = make_queue()
        """The queue of requests that hold nothing (of all, if there is only one)."""
        self._set_aside: list[Request] = []

    @abstractmethod
    def add(self, request: Request) -> None:
        """Enqueue a request that newly waits."""

    @abstractmethod
    def add_preempted(self, request: Request) -> None:
        """Enqueue a request that has just lost its blocks."""

    @abstractmethod
    def head(self, *, only_holders: bool = False) -> Request | None:
        """Who is to be looked at next; None: nobody."""

    @abstractmethod
    def take_head(self) -> Request:
        """Take the request that `head` gave."""

    def set_aside(self, request: Request) -> None:
        """A request taken in this pass stays waiting."""
        self.size += 1
        self._set_aside.append(request)

    @abstractmethod
    def put_back(self) -> None:
        """The pass is over."""

    @abstractmethod
    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests wherever they stand."""

    @abstractmethod
    def holders(self) -> list[Request]:
        """The queue of requests that hold blocks, in order; empty if there is only one queue."""

    def __len__(self) -> int:
        return self.size

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """In the order in which they would be looked at."""


class OneQueue(WaitingLine):
    """Everybody in one queue."""

    def add(self, request: Request) -> None:
        """See `WaitingLine`."""
        self.size += 1
        self.ordinary.add(request)

    def add_preempted(self, request: Request) -> None:
        """See `WaitingLine`."""
        self.size += 1
        self.ordinary.add_front(request)

    def head(self, *, only_holders: bool = False) -> Request | None:
        """See `WaitingLine`. Holders cannot be told apart here: all or nobody."""
        return self.ordinary.peek() if self.size > len(self._set_aside) and not only_holders else None

    def take_head(self) -> Request:
        """See `WaitingLine`."""
        self.size -= 1
        return self.ordinary.pop()

    def put_back(self) -> None:
        """See `WaitingLine`."""
        if self._set_aside:
            self.ordinary.put_back(self._set_aside)
            self._set_aside = []

    def remove(self, requests: Collection[Request]) -> None:
        """See `WaitingLine`."""
        self.ordinary.remove(requests)
        self.size = len(self.ordinary) + len(self._set_aside)

    def holders(self) -> list[Request]:
        """See `WaitingLine`."""
        return []

    def __iter__(self) -> Iterator[Request]:
        return iter(self.ordinary)


class HoldersFirst(WaitingLine):
    """Two queues. A request is sorted in when it is enqueued or put back, and not moved in between."""

    def __init__(self, make_queue: Callable[[], RequestQueue]) -> None:
        super().__init__(make_queue)
        self._holders = make_queue()
        self._taken_from = self.ordinary

    def add(self, request: Request) -> None:
        """See `WaitingLine`."""
        self.size += 1
        self._queue_for(request).add(request)

    def add_preempted(self, request: Request) -> None:
        """See `WaitingLine`."""
        self.size += 1
        self.ordinary.add_front(request)

    def head(self, *, only_holders: bool = False) -> Request | None:
        """See `WaitingLine`: all holders come first, whatever their order or priority."""
        self._taken_from = self._holders if only_holders or len(self._holders) else self.ordinary
        return self._taken_from.peek() if len(self._taken_from) else None

    def take_head(self) -> Request:
        """See `WaitingLine`."""
        self.size -= 1
        return self._taken_from.pop()

    def put_back(self) -> None:
        """See `WaitingLine`."""
        if not self._set_aside:
            return
        for queue in (self._holders, self.ordinary):
            mine = [request for request in self._set_aside if self._queue_for(request) is queue]
            if mine:
                queue.put_back(mine)
        self._set_aside = []

    def remove(self, requests: Collection[Request]) -> None:
        """See `WaitingLine`. Both queues are filtered, which a heap shows even if nobody was in it."""
        self._holders.remove(requests)
        self.ordinary.remove(requests)
        self.size = len(self._holders) + len(self.ordinary) + len(self._set_aside)

    def holders(self) -> list[Request]:
        """See `WaitingLine`."""
        return list(self._holders)

    def _queue_for(self, request: Request) -> RequestQueue:
        loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        return self._holders if request.num_computed_tokens or loading else self.ordinary

    def __iter__(self) -> Iterator[Request]:
        yield from self._holders
        yield from self.ordinary
