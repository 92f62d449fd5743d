"""The waiting line and its queues: first come first served, a heap for every order by a key, fair turns.

A scheduling pass looks at the head of the line, takes it, or sets it aside and looks at the next; at the end
of the pass what was set aside returns. The heap makes exactly the moves of Python's `heapq`, and compares
requests as they are at that moment: which of two equals comes first, and what happens when a key changes
inside the heap, is part of vLLM's visible behaviour.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from scheduler.policies import AnyWaitingOrder, FairOrder, FcfsOrder, RequestView, WaitingOrder
from scheduler.request import WAITING, Request, RequestStatus


class WaitingLine:
    """The waiting requests of one engine, in one queue or two.

    In early releases there is one. Later ones (vLLM's `skipped_waiting`) serve requests that hold blocks from
    a queue of their own, which comes first, so that no holder is stuck behind a request that waits for those
    very blocks. A request is sorted in when it is enqueued or put back, and is not moved in between.
    """

    def __init__(self, ordinary: RequestQueue, holders: RequestQueue | None = None) -> None:
        self.size = 0
        """How many requests wait, also those set aside in the pass under way."""
        self.ordinary = ordinary
        """The queue of requests that hold nothing; of all, if there is only one."""
        self.deferred: set[int] = set()
        """Ids of those that were passed over, or enqueued in a status in which they would be."""
        self._holders = holders
        self._taken_from = ordinary
        self._set_aside: list[Request] = []

    def add(self, request: Request) -> None:
        """Enqueue a request that waits from now on."""
        self.size += 1
        self._queue_for(request).add(request)
        if request.status is not WAITING:
            self.deferred.add(request.request_id)

    def add_preempted(self, request: Request) -> None:
        """Enqueue a request that has just lost its blocks."""
        self.size += 1
        self.ordinary.add_front(request)

    def head(self, *, only_holders: bool = False) -> Request | None:
        """The request to be looked at next, None if there is none.

        All holders come first, whatever their order or priority. With one queue they cannot be told apart:
        then `only_holders` gives nobody.
        """
        if self.size == len(self._set_aside):
            return None
        queue, holders = self.ordinary, self._holders
        if holders is not None and (only_holders or len(holders)):
            queue = holders
        elif only_holders:
            return None
        self._taken_from = queue
        return queue.peek() if len(queue) else None

    def take_head(self) -> Request:
        """Take the request that `head` gave out of the line."""
        self.size -= 1
        request = self._taken_from.pop()
        if self.deferred:
            self.deferred.discard(request.request_id)
        return request

    def set_aside(self, request: Request) -> None:
        """A request taken in this pass stays waiting, and is not looked at again before the next."""
        self.size += 1
        self._set_aside.append(request)
        self.deferred.add(request.request_id)

    def put_back(self) -> None:
        """The pass is over: requests set aside return to their queues."""
        set_aside, holders = self._set_aside, self._holders
        if not set_aside:
            return
        self._set_aside = []
        if holders is None:
            self.ordinary.put_back(set_aside)
            return
        for queue in (holders, self.ordinary):
            mine = [request for request in set_aside if self._queue_for(request) is queue]
            if mine:
                queue.put_back(mine)

    def remove(self, requests: Collection[Request]) -> None:
        """Take out requests wherever they stand. Both queues are filtered, which a heap shows even if nobody
        was in it.
        """
        self.size = len(self._set_aside)
        if self._holders is not None:
            self._holders.remove(requests)
            self.size += len(self._holders)
        self.ordinary.remove(requests)
        self.size += len(self.ordinary)
        if self.deferred:
            self.deferred.difference_update(request.request_id for request in requests)

    @property
    def holders(self) -> list[Request]:
        """The queue of requests that hold blocks, in order; empty if there is only one queue."""
        return [] if self._holders is None else list(self._holders)

    def _queue_for(self, request: Request) -> RequestQueue:
        if self._holders is None:
            return self.ordinary
        loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        return self._holders if request.num_computed_tokens or loading else self.ordinary

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they would be looked at."""
        yield from self.holders
        yield from self.ordinary


class RequestQueue(ABC):
    """What the line asks of a queue."""

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
        """Filter both lists."""
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


class FairQueue(RequestQueue):
    """One line of waiting requests per client; of equally served clients, the one whose head came first."""

    def __init__(self, order: FairOrder) -> None:
        self.order = order
        self._lines: dict[int, deque[Request]] = {}
        self._size = 0
        self._last_to_leave: int | None = None

    def add(self, request: Request) -> None:
        """To the tail of its client's line."""
        self.order.forget(request)
        self._line(request, welcome=True).append(request)

    def add_front(self, request: Request) -> None:
        """To the front of its client's line."""
        self.order.interrupt(request)
        self._line(request, welcome=False).appendleft(request)

    def peek(self) -> Request:
        """The head of the line whose turn it is."""
        self.order.settle()
        return self._lines[self._next_client()][0]

    def pop(self) -> Request:
        """Take it, into service."""
        self.order.settle()
        client = self._next_client()
        line = self._lines[client]
        request = line.popleft()
        self._size -= 1
        if not line:
            del self._lines[client]
            self._last_to_leave = client
        self.order.admit(request)
        return request

    def put_back(self, set_aside: Sequence[Request]) -> None:
        """To the front of their lines, in their old order, and off the bill."""
        for request in reversed(set_aside):
            self.order.take_back(request)
            self._line(request, welcome=False).appendleft(request)

    def remove(self, requests: Collection[Request]) -> None:
        """Take them out of their lines, and close their bills."""
        for client in list(self._lines):
            line = self._lines[client]
            kept = deque([request for request in line if request not in requests])
            self._size -= len(line) - len(kept)
            self._lines[client] = kept
            for request in line:
                if request in requests:
                    self.order.forget(request)
            if not kept:
                del self._lines[client]
                self._last_to_leave = client

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """The order of turns if everybody were admitted now."""
        order = self.order
        lines = {client: deque(line) for client, line in self._lines.items()}
        served = dict(order.served)
        while lines:
            client = _next_turn(lines, served)
            request = lines[client].popleft()
            if request.num_cached_tokens == -1:
                served[client] += order.prompt_weight * request.num_prompt_tokens
            if not lines[client]:
                del lines[client]
            yield request

    def _line(self, request: Request, *, welcome: bool) -> deque[Request]:
        client = request.client_index
        line = self._lines.get(client)
        if line is None:
            if welcome:
                self.order.settle()
                self.order.welcome(client, self._lines, self._last_to_leave)
            self.order.served.setdefault(client, 0.0)
            line = self._lines[client] = deque()
        self._size += 1
        return line

    def _next_client(self) -> int:
        return _next_turn(self._lines, self.order.served)


def _next_turn(lines: dict[int, deque[Request]], served: dict[int, float]) -> int:
    """The client with the least service; of equals, the one whose head arrived first."""
    turns = [
        (served[client], line[0].arrival_time, line[0].request_id, client) for client, line in lines.items()
    ]
    return min(turns)[3]


def make_queue(order: AnyWaitingOrder, *, put_back_singly: bool = False) -> RequestQueue:
    """An empty queue that gives requests out in this order."""
    if isinstance(order, FcfsOrder):
        return FifoQueue()
    if isinstance(order, FairOrder):
        return FairQueue(order)
    return HeapQueue(order, put_back_singly)
