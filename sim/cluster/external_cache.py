"""A KV cache outside the engines, seen through vLLM's KV connector: what it holds, and how long loads take.

Each replica has a connector; they may share what is cached and the link to it. A load carries whole blocks,
one load after another, and is reported when its bytes have come. An asynchronous load holds its blocks while
its request waits; after a synchronous one the step that admitted the request begins.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cost_models.models import SlidingWindow
from scheduler import ExternalMatch, KVReport, Request
from sim.cluster.servers import Link

_NOTHING = ExternalMatch(0, False)
_Block = tuple[int, object, str | None]


class Contents(Protocol):
    """What is cached."""

    def find(self, request: Request) -> int:
        """Leading tokens of the request's text that are there; a multiple of the block size."""

    def note_running(self, request: Request) -> None:
        """The request has got its blocks: what it computes will be there once it is computed."""

    def note_ended(self, request: Request) -> None:
        """The request has ended; its counts and tokens still stand."""


class GivenShares:
    """A hit rate from outside: `found_tokens[request id]` leading tokens of each prompt are there, always."""

    def __init__(self, found_tokens: npt.NDArray[np.int64], block_size: int) -> None:
        self._found_tokens = found_tokens // block_size * block_size

    def find(self, request: Request) -> int:
        """The given number of leading tokens."""
        return int(self._found_tokens[request.request_id])

    def note_running(self, request: Request) -> None:
        """Changes nothing."""

    def note_ended(self, request: Request) -> None:
        """Changes nothing."""


class LruBlocks:
    """The least recently used block goes first. Of one text the tail is older than the head.

    A block is known by the block before it, its tokens, and the adapter that computed it. Prompts come in
    once their first output token is there, outputs when their request ends.
    """

    def __init__(self, capacity_tokens: int, block_size: int) -> None:
        self.num_evicted = 0
        self._capacity = capacity_tokens // block_size
        self._size = block_size
        self._blocks: OrderedDict[_Block, int] = OrderedDict()
        self._numbers = 0
        self._computing: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, request: Request) -> int:
        """Leading tokens whose blocks are there; they count as used from now on."""
        self._take_computed()
        found = self._chain(request, request.num_tokens // self._size)
        self._touch(found)
        return len(found) * self._size

    def note_running(self, request: Request) -> None:
        """Its prompt will be stored once its first output token is there."""
        self._computing[request.request_id] = request

    def note_ended(self, request: Request) -> None:
        """Store all that was computed of its text."""
        self._computing.pop(request.request_id, None)
        self._store(request, min(request.num_computed_tokens, request.num_tokens))

    def _take_computed(self) -> None:
        ready = [request for request in self._computing.values() if request.num_output_tokens]
        for request in ready:
            del self._computing[request.request_id]
            self._store(request, request.num_prompt_tokens)

    def _key(self, request: Request, index: int, before: int) -> _Block:
        begin = index * self._size
        return before, request.tokens.pieces(begin, begin + self._size), request.lora_name

    def _chain(self, request: Request, num_blocks: int) -> list[_Block]:
        """The keys of the leading blocks that are there."""
        found: list[_Block] = []
        before = 0
        for index in range(num_blocks):
            key = self._key(request, index, before)
            number = self._blocks.get(key)
            if number is None:
                break
            found.append(key)
            before = number
        return found

    def _touch(self, keys: list[_Block]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _store(self, request: Request, num_tokens: int) -> None:
        keys = self._chain(request, min(num_tokens // self._size, self._capacity))
        before = self._blocks[keys[-1]] if keys else 0
        for index in range(len(keys), min(num_tokens // self._size, self._capacity)):
            key = self._key(request, index, before)
            self._numbers += 1
            before = self._blocks[key] = self._numbers
            keys.append(key)
        self._touch(keys)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
            self.num_evicted += 1


@dataclass(frozen=True, slots=True)
class ExternalCacheSpec:
    """How a replica reaches the cache. `bytes_per_token`: KV bytes of a token on all GPUs of a replica.

    `windowed_share` of these are of layers with a `window`, of which only what it still shows is loaded.
    """

    bytes_per_token: float
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    asynchronous: bool = True
    shared: bool = True
    capacity_tokens: int | None = None
    """Of a cache of blocks; None: hits are given by `found_tokens`."""
    found_tokens: npt.NDArray[np.int64] | None = None
    windowed_share: float = 0.0
    window: SlidingWindow | None = None

    def load_bytes(self, num_tokens: int, end_tokens: int) -> float:
        """Bytes of a load of `num_tokens` tokens of a text, up to the first `end_tokens` of it."""
        attended = num_tokens
        if self.window is not None:
            attended = min(num_tokens, self.window.attended(end_tokens))
        share = self.windowed_share
        return self.bytes_per_token * ((1.0 - share) * num_tokens + share * attended)

    def contents(self, block_size: int) -> Contents:
        """A new cache, empty or with given hits."""
        if self.capacity_tokens is not None:
            return LruBlocks(self.capacity_tokens, block_size)
        assert self.found_tokens is not None
        return GivenShares(self.found_tokens, block_size)


class ExternalCache:
    """The KV connector of one replica, which sets `now_s`."""

    def __init__(self, spec: ExternalCacheSpec, contents: Contents, link: Link, block_size: int) -> None:
        self.now_s = 0.0
        self.gpu_free_s = 0.0
        """Not needed here."""
        self.ready_s = 0.0
        """When the last synchronous load ends: no batch may begin before."""
        self.num_loads = 0
        self._spec = spec
        self.contents = contents
        self.link = link
        self._block_size = block_size
        self._loads: deque[tuple[float, int]] = deque()
        self._found_tokens: dict[int, int] = {}
        """By requests not yet admitted: the leading tokens that a load would complete."""

    # --- KV connector -------------------------------------------------------------------------------------

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        """The tokens that are cached behind the local hits.

        After a synchronous load at least one token must be left to compute; the engine sees to that itself
        after an asynchronous one.
        """
        size, asynchronous = self._block_size, self._spec.asynchronous
        most = request.num_tokens if asynchronous else request.num_tokens - 1
        end = min(self.contents.find(request), most // size * size)
        self._found_tokens[request.request_id] = end
        found = end - num_local_tokens
        return ExternalMatch(found, asynchronous) if found > 0 else _NOTHING

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        """The load, if any, begins."""
        self.contents.note_running(request)
        end = self._found_tokens.pop(request.request_id, 0)
        if not num_external_tokens:
            return
        self.num_loads += 1
        ends_s = self.link.carry(self.now_s, self._spec.load_bytes(num_external_tokens, end))
        ends_s += self._spec.latency_s
        if self._spec.asynchronous:
            self._loads.append((ends_s, request.request_id))
        else:
            self.ready_s = ends_s

    def delays_free(self, request: Request) -> bool:
        """The request has ended; copies out are not waited for."""
        self.contents.note_ended(request)
        self._found_tokens.pop(request.request_id, None)
        return False

    # --- reports --------------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether loads are under way, or have ended and are not reported."""
        return bool(self._loads)

    @property
    def load_ends_s(self) -> float:
        """When the next load ends, infinite if there is none: on one link they end in order."""
        return self._loads[0][0] if self._loads else inf

    def report(self) -> KVReport | None:
        """The loads that have ended by `now_s`, told once."""
        received = []
        while self._loads and self._loads[0][0] <= self.now_s:
            received.append(self._loads.popleft()[1])
        return KVReport(received=received) if received else None
