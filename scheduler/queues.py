"""Waiting queues: first come first served, and a binary heap for every order by a key.

Both can take back requests that one scheduling pass has set aside. The heap makes exactly the moves of
Python's `heapq`, and compares requests as they are at that moment: which of two equals comes first, and what
happens when a key changes inside the heap, is part of vLLM's visible behaviour.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from scheduler.policies import AnyWaitingOrder, FairOrder, FcfsOrder, RequestView, WaitingOrder
from scheduler.policies.fair import FairQueue
from scheduler.request import Request


class RequestQueue(Protocol):
    """What the scheduler asks of a waiting queue."""

    def add(self, request: Request) -> None:
        """Enqueue a request that newly waits."""
        ...

    def add_front(self, request: Request) -> None:
        """Enqueue a preempted request."""
        ...

    def peek(self) -> Request:
        """The head."""
        ...

    def pop(self) -> Request:
        """Take the head."""
        ...

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """Take back requests popped and passed over in one pass, in the order in which they were popped."""
        ...

    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests wherever they stand; those that are not here do not matter."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In the order in which pops would return them."""
        ...


class FifoQueue:
    """First come, first served; preempted requests go to the front."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """To the tail."""
        self._queue.append(request)

    def add_front(self, request: Request) -> None:
        """To the front."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        """The head."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the head."""
        return self._queue.popleft()

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """To the front, in their old order."""
        self._queue.extendleft(reversed(set_aside))

    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests."""
        self._queue = deque(request for request in self._queue if request not in requests)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class _Entry:
    """A request in a heap, compared by its key of the moment."""

    __slots__ = ("order", "request", "view")

    def __init__(self, request: Request, order: WaitingOrder) -> None:
        self.request = request
        self.view = RequestView(request)
        self.order = order

    def __lt__(self, other: _Entry) -> bool:
        return self.order.key(self.view) < self.order.key(other.view)


class HeapQueue:
    """A binary heap ordered by `order`.

    What was set aside comes back through a second heap, in its pop order, or (`put_back_singly`) one by
    one, the last first.
    """

    __slots__ = ("_heap", "order", "put_back_singly")

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


def make_queue(order: AnyWaitingOrder, *, put_back_singly: bool = False) -> RequestQueue:
    """An empty queue that gives requests out in this order."""
    if isinstance(order, FcfsOrder):
        return FifoQueue()
    if isinstance(order, FairOrder):
        return FairQueue(order)
    return HeapQueue(order, put_back_singly)
