"""What a policy sees of a request: what the control plane of a real server could know, read-only.

Not here, on purpose: `max_tokens`, which is the true output length wherever a client asks for exactly that
many tokens, and anything else that tells how long the output will be. `expected_output_tokens` is a guess
that came with the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from scheduler.kv_cache.interface import Pool
from scheduler.request import Request


class RequestView:
    """One request as of now. Counts are tokens unless the name says otherwise."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def request_id(self) -> int:
        """Its id; ids grow in the order in which the workload lists the requests."""
        return self._request.request_id

    @property
    def client_index(self) -> int:
        """The client that sent it."""
        return self._request.client_index

    @property
    def priority(self) -> int:
        """Smaller goes first."""
        return self._request.priority

    @property
    def arrival_time(self) -> float:
        """When it arrived, s."""
        return self._request.arrival_time

    @property
    def num_prompt_tokens(self) -> int:
        """Its prompt."""
        return self._request.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Generated so far; a preemption does not take them away."""
        return self._request.num_output_tokens

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return self._request.num_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Those whose KV is there, or being computed in a step under way."""
        return self._request.num_computed_tokens

    @property
    def num_preemptions(self) -> int:
        """How many times it has lost its blocks."""
        return self._request.num_preemptions

    @property
    def expected_output_tokens(self) -> float | None:
        """A guess at the whole output, made before it began; None if nobody made one."""
        return self._request.expected_output_tokens

    @property
    def expected_remaining_tokens(self) -> float | None:
        """The guess less what is there already, at least one token; None without a guess."""
        expected = self._request.expected_output_tokens
        return None if expected is None else max(expected - self._request.num_output_tokens, 1.0)


class VictimView(RequestView):
    """A running request, with what its blocks are worth."""

    __slots__ = ("_pool",)

    def __init__(self, request: Request, pool: Pool) -> None:
        super().__init__(request)
        self._pool = pool

    @property
    def num_blocks_freed(self) -> int:
        """KV blocks that would become free if it were preempted: those that nobody shares."""
        return len(unshared_blocks(self._request, self._pool))


class RunningView(Sequence[VictimView]):
    """The running list in its order, seen request by request."""

    __slots__ = ("_pool", "_running")

    def __init__(self, running: Sequence[Request], pool: Pool) -> None:
        self._running = running
        self._pool = pool

    @overload
    def __getitem__(self, index: int) -> VictimView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[VictimView]: ...
    def __getitem__(self, index: int | slice) -> VictimView | Sequence[VictimView]:
        if isinstance(index, slice):
            return [VictimView(request, self._pool) for request in self._running[index]]
        return VictimView(self._running[index], self._pool)

    def __iter__(self) -> Iterator[VictimView]:
        return (VictimView(request, self._pool) for request in self._running)

    def __len__(self) -> int:
        return len(self._running)


def unshared_blocks(request: Request, pool: Pool) -> list[int]:
    """Blocks that this request alone holds, over all KV groups."""
    return pool.unshared_blocks(request)
