"""KV connectors that take time: what a replica needs to know of one, and which one each replica has."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from scheduler import ExternalMatch, KVConnector, KVReport, Request, RequestStatus
from sim.cluster.external_cache import ExternalCache, ExternalCacheSpec
from sim.cluster.servers import Link


class TimedConnector(KVConnector, Protocol):
    """A connector whose transfers take time. The replica sets `now_s` and `gpu_free_s` before each use."""

    now_s: float
    gpu_free_s: float
    """When the last batch handed to the GPU ends."""

    @property
    def ready_s(self) -> float:
        """No batch may begin before: it would overwrite, or read, what is still being copied."""

    @property
    def is_loading(self) -> bool:
        """Whether loads are under way that have not been reported."""

    @property
    def load_ends_s(self) -> float:
        """When the next load ends; infinite if there is none."""

    def report(self) -> KVReport | None:
        """What has ended by `now_s`, told once."""


def make_connectors(
    offload: OffloadSpec | None, cache: ExternalCacheSpec | None, block_size: int, num_replicas: int
) -> list[HostOffload] | list[ExternalCache] | list[None]:
    """The connector of each replica, if replicas have one."""
    if offload is not None:
        return [HostOffload(offload, block_size) for _ in range(num_replicas)]
    if cache is None:
        return [None] * num_replicas
    connectors: list[ExternalCache] = []
    for index in range(num_replicas):
        if index == 0 or not cache.shared:
            contents, link = cache.contents(block_size), Link(cache.bandwidth_bytes_per_s)
        connectors.append(ExternalCache(cache, contents, link, block_size))
    return connectors


@dataclass(frozen=True, slots=True)
class OffloadSpec:
    """Bytes are those of one GPU; the GPUs of a replica copy their shares side by side."""

    bytes_per_token: float
    bandwidth_bytes_per_s: float
    """Of each direction of a GPU's link to the host."""
    capacity_bytes: float = inf
    """Host memory; KV that does not fit is not saved and will be computed again."""


class HostOffload:
    """Preemption mode and KV connector of one replica, which sets `now_s` and `gpu_free_s`."""

    def __init__(self, spec: OffloadSpec, block_size: int) -> None:
        self.now_s = 0.0
        self.gpu_free_s = 0.0
        """When the last batch handed to the GPU ends: only then is the victim's KV complete."""
        self.ready_s = 0.0
        """When the last copy to the host ends: no batch may begin before."""
        self.out, self.back = Link(spec.bandwidth_bytes_per_s), Link(spec.bandwidth_bytes_per_s)
        self._block_size = block_size
        self._block_bytes = spec.bytes_per_token * block_size
        self._free_bytes = spec.capacity_bytes
        self._saved_blocks: dict[int, int] = {}
        self._loading: Request | None = None
        self.load_ends_s = inf
        """When the load under way ends; infinite if there is none."""

    # --- preemption mode ----------------------------------------------------------------------------------

    def before_preemption(self, request: Request) -> None:
        """Copy the full blocks that are not on the host yet. Sessions, whose text changes, are not saved."""
        if request.resumable:
            return
        known = min(request.num_computed_tokens, request.num_tokens)
        saved = self._saved_blocks.get(request.request_id, 0)
        missing = known // self._block_size - saved
        fitting = int(min(missing, self._free_bytes // self._block_bytes))
        if fitting > 0:
            self._saved_blocks[request.request_id] = saved + fitting
            self._free_bytes -= fitting * self._block_bytes
            complete_s = max(self.now_s, self.gpu_free_s)
            self.ready_s = self.out.carry(complete_s, fitting * self._block_bytes)

    # --- KV connector -------------------------------------------------------------------------------------

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        """The saved tokens beyond the local hits; None, ask again, to those who must step aside.

        While one request loads, no other may begin to. Once it is loaded it holds blocks and must be reached,
        so all others step aside until it runs.
        """
        saved = self._saved_blocks.get(request.request_id, 0) * self._block_size
        num_tokens = max(min(saved, request.num_tokens) - num_local_tokens, 0)
        if self._waits_with_blocks() and (num_tokens or not self.is_loading):
            return None
        return ExternalMatch(num_tokens, num_tokens > 0)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        """Start the load, behind the copy out that it may have to wait for."""
        if num_external_tokens:
            num_bytes = num_external_tokens / self._block_size * self._block_bytes
            self.load_ends_s = self.back.carry(max(self.now_s, self.ready_s), num_bytes)
            self._loading = request

    def delays_free(self, request: Request) -> bool:
        """The request has ended: its place on the host is free. GPU blocks need not wait for anything."""
        self._free_bytes += self._saved_blocks.pop(request.request_id, 0) * self._block_bytes
        return False

    def _waits_with_blocks(self) -> bool:
        """From the allocation for its load until it runs, a request holds blocks while it waits."""
        loading = self._loading
        if loading is None or loading.is_finished or loading.status is RequestStatus.RUNNING:
            return False
        return bool(loading.block_tables)

    # --- reports --------------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way that has not been reported."""
        return self.load_ends_s < inf

    def report(self) -> KVReport | None:
        """The load that has ended by `now_s`, told once."""
        if self._loading is None or self.load_ends_s > self.now_s:
            return None
        self.load_ends_s = inf
        return KVReport(received=(self._loading.request_id,))
