"""Everything an engine knows between two steps. The modules of this package are verbs on this noun."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.accounts import PreemptionAccounts
from scheduler.config import SchedulerConfig
from scheduler.connector import KVConnector
from scheduler.kv_cache.coordinator import KVCache
from scheduler.policies.preemption_mode import PreemptionMode, Recompute
from scheduler.policies.view import unshared_blocks
from scheduler.queues import RequestQueue
from scheduler.request import Request
from scheduler.status import RequestStatus

if TYPE_CHECKING:
    from scheduler.cohort import Cohort


@dataclass(slots=True)
class PrefixCacheStats:
    """Prefix lookups as vLLM counts them: tokens asked for and found, requests once preempted kept apart.

    Lookups are counted at every attempt, so `hits` can exceed the tokens really saved; those are in
    `saved_tokens` (hit tokens of admitted requests).
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    saved_tokens: int = 0

    def count(self, request: Request, num_tokens: int, num_hits: int) -> None:
        """Count one lookup of `num_tokens` tokens that found `num_hits`."""
        if request.num_preemptions:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


@dataclass(slots=True)
class EngineState:
    """Requests, queues, KV cache and accounts of one engine."""

    config: SchedulerConfig
    kv_cache: KVCache
    waiting: RequestQueue
    connector: KVConnector | None = None
    running: list[Request] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    """Everything known, by id: waiting, running, and finished requests whose blocks are not yet released."""
    finished_req_ids: set[int] = field(default_factory=set)
    """Ended since the last step was scheduled."""
    finished_by_client: dict[int, set[int]] | None = None
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    connector_prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    received_loads: set[int] = field(default_factory=set)
    """Waiting requests whose KV has been loaded but that have not been looked at since."""
    failed_loads: set[int] = field(default_factory=set)
    """Loads under way or received in which some blocks turned out bad."""
    num_preemptions: int = 0
    preemption_mode: PreemptionMode = field(default_factory=Recompute)
    preemption_accounts: PreemptionAccounts = field(default_factory=PreemptionAccounts)
    cohort: Cohort | None = None
    """Running requests in steady decode, whose own counts are not kept up to date."""
    num_sessions_idle: int = 0
    """Streaming sessions waiting for their next input: they are not unfinished work."""

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and send it back to the front of the waiting queue.

        The caller has removed it from the running list. Output tokens, block hashes and the cached-token
        count of its first scheduling are kept, and so are tokens in flight for it.
        """
        self.preemption_mode.before_preemption(request)
        self.preemption_accounts.preempted(request, unshared_blocks(request, self.kv_cache.pool))
        self.kv_cache.free(request)
        request.move_to(RequestStatus.PREEMPTED)
        request.high_water_tokens = max(request.high_water_tokens, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add_front(request)
