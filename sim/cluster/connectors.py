"""KV connectors that take time: what a replica needs to know of one, and which one each replica has."""

from __future__ import annotations

from typing import Protocol

from scheduler import KVConnector, KVReport
from sim.cluster.external_cache import ExternalCache, ExternalCacheSpec
from sim.cluster.host_offload import HostOffload, OffloadSpec
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
