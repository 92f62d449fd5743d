"""Waiting queues: first come first served, and a binary heap for every order by a key.

Both can take back requests that one scheduling pass has set aside. The heap makes exactly the moves of
Python's `heapq`, and compares requests as they are at that moment: which of two equals comes first, and what
happens when a key changes inside the heap, is part of vLLM's visible behaviour.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from scheduler.policies import AnyWaitingOrder, FairOrder, FcfsOrder, RequestView, WaitingOrder
from scheduler.policies.fair import FairQueue
from scheduler.request import Request


class RequestQueue(ABC):
    """What the scheduler asks of a waiting queue."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Enqueue a request that newly waits."""

    @abstractmethod
    def add_front(self, request: Request) -> None:
        """Enqueue a preempted request."""

    @abstractmethod
    def peek(self) -> Request:
        """The head."""

    @abstractmethod
    def pop(self) -> Request:
        """Take the head."""

    @abstractmethod
    def put_back(self, set_aside: Sequence[Request]) -> None:
        """Take back requests popped and passed over in one pass, in the order in which they were popped."""

    @abstractmethod
    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests wherever they stand; those that are not here do not matter."""

    @abstractmethod
    def __len__(self) -> int:
        """How many wait."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """In the order in which pops would return them."""


class FifoQueue(RequestQueue):
    """First come, first served; preempted requests go to the front.

    Two lists: who stands in `_front`, the head last, goes before those in `_back`, who stand as they came.
    """

    def __init__(self) -> None:
        self._front: list[Request] = []
        self._back: list[Request] = []

    def add(self, request: Request) -> None:
        """To the tail."""
        self._back.append(request)

    def add_front(self, request: Request) -> None:
        """To the front."""
        self._front.append(request)

    def peek(self) -> Request:
        """The head."""
        if not self._front:
            self._turn_over()
        return self._front[-1]

    def pop(self) -> Request:
        """Take the head."""
        if not self._front:
            self._turn_over()
        return self._front.pop()

    def _turn_over(self) -> None:
        self._back.reverse()
        self._front, self._back = self._back, self._front

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """To the front, in their old order."""
        self._front.extend(reversed(set_aside))

    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests."""
        self._front = [request for request in self._front if request not in requests]
        self._back = [request for request in self._back if request not in requests]

    def __len__(self) -> int:
        return len(self._front) + len(self._back)

    def __iter__(self) -> Iterator[Request]:
        return iter([*reversed(self._front), *self._back])


class _Entry:
    """A request in a heap, compared by its key of the moment."""

    __slots__ = ("order", "request", "view")

    def __init__(self, request: Request, order: WaitingOrder) -> None:
        self.request = request
        self.view = RequestView(request)
        self.order = order

    def __lt__(self, other: _Entry) -> bool:
        return self.order.key(self.view) < self.order.key(other.view)


class HeapQueue(RequestQueue):
    """A binary heap ordered by `order`.

    What was set aside comes back through a second heap, in its pop order, or (`put_back_singly`) one by
    one, the last first.
    """

    def __init__(self, order: WaitingOrder, put_back_singly: bool = False) -> None:
        self.order = order
        self.put_back_singly = put_back_singly
        self._heap: list[_Entry] = []

    def add(self, request: Request) -> None:
        """Push."""
        heapq.heappush(self._heap, _Entry(request, self.order))

    def add_front(self, request: Request) -> None:
        """Push: a preempted request has no better place than its key gives it."""
        self.add(request)

    def peek(self) -> Request:
        """The head."""
        return self._heap[0].request

    def pop(self) -> Request:
        """Take the head."""
        return heapq.heappop(self._heap).request

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """Through a second heap, or one by one."""
        if self.put_back_singly:
            for request in reversed(set_aside):
                self.add(request)
            return
        second = HeapQueue(self.order)
        for request in set_aside:
            second.add(request)
        for request in second:
            self.add(request)

    def remove(self, requests: Collection[Request]) -> None:
        """Filter the heap's array and heapify it again."""
        self._heap = [entry for entry in self._heap if entry.request not in requests]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        heap = self._heap.copy()
        while heap:
            yield heapq.heappop(heap).request


class PolicyQueue(RequestQueue):
    """The queue that a waiting order brings along."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue

    def add(self, request: Request) -> None:
        """See `RequestQueue`."""
        self._queue.add(request)

    def add_front(self, request: Request) -> None:
        """See `RequestQueue`."""
        self._queue.add_front(request)

    def peek(self) -> Request:
        """See `RequestQueue`."""
        return self._queue.peek()

    def pop(self) -> Request:
        """See `RequestQueue`."""
        return self._queue.pop()

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """See `RequestQueue`."""
        self._queue.put_back(set_aside)

    def remove(self, requests: Collection[Request]) -> None:
        """See `RequestQueue`."""
        self._queue.remove(requests)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


def make_queue(order: AnyWaitingOrder, *, put_back_singly: bool = False) -> RequestQueue:
    """An empty queue that gives requests out in this order."""
    if isinstance(order, FcfsOrder):
        return FifoQueue()
    if isinstance(order, FairOrder):
        return PolicyQueue(FairQueue(order))
    return HeapQueue(order, put_back_singly)
