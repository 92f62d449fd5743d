"""Everything an engine knows between two steps. The modules of this package are verbs on this noun."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from scheduler.accounts import PreemptionAccounts
from scheduler.async_scheduling import SyncBookkeeping
from scheduler.config import SchedulerConfig
from scheduler.connector import KVConnector
from scheduler.kv_cache.grouped import DeferredFrees
from scheduler.kv_cache.interface import KVCache
from scheduler.output import SchedulerOutput
from scheduler.policies.preemption_mode import PreemptionMode, Recompute
from scheduler.policies.view import unshared_blocks
from scheduler.prefill_interval import PrefillInterval
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.status import RequestStatus
from scheduler.waiting_line import WaitingLine

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
    rules: Rules
    kv_cache: KVCache
    waiting: WaitingLine
    bookkeeping: SyncBookkeeping
    interval: PrefillInterval
    connector: KVConnector | None = None
    pause: int = 0
    """0: normal, 1: nothing new (only requests that hold blocks), 2: nothing at all."""
    running: list[Request] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    """Everything known, by id: waiting, running, and finished requests whose blocks are not yet released."""
    finished_req_ids: list[int] = field(default_factory=list)
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
    prefills_under_way: dict[int, Request] = field(default_factory=dict)
    """With a connector: prompts admitted in part or being loaded, whose other blocks will be needed."""
    num_steps: int = 0
    """Steps so far that scheduled anything."""
    deferred_frees: DeferredFrees | None = None
    """Blocks that steps in flight still write into, where the release waits for these steps to free them."""

    def note_step(self, output: SchedulerOutput) -> None:
        """A step has been planned: number it, and let it carry the ids that ended since the last."""
        scheduled_any = output.total_num_scheduled_tokens > 0
        self.interval.end_step(scheduled_any)
        self.num_steps += scheduled_any
        if self.prefills_under_way:
            self.prefills_under_way = {
                request_id: request
                for request_id, request in self.prefills_under_way.items()
                if request.status is not RequestStatus.RUNNING or request.is_prefill_chunk
            }
        output.step_number = self.num_steps
        if self.finished_req_ids:
            output.finished_req_ids = set(self.finished_req_ids)
            self.finished_req_ids.clear()

    def preempt(self, request: Request, *, by_reset: bool = False) -> None:
        """Take a running request's blocks and send it back to the front of the waiting queue.

        The caller has removed it from the running list. Output tokens, block hashes and the cached-token
        count of its first scheduling are kept.
        """
        self.preemption_mode.before_preemption(request)
        self.preemption_accounts.preempted(request, unshared_blocks(request, self.kv_cache.pool))
        self.free_blocks(request)
        self.bookkeeping.note_preempted(request, by_reset=by_reset)
        self.prefills_under_way.pop(request.request_id, None)
        request.move_to(RequestStatus.PREEMPTED)
        request.high_water_tokens = max(request.high_water_tokens, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add_preempted(request)

    def sweep_hashes(self) -> None:
        """Forget numbered hashes that nothing refers to any more."""
        requests = self.requests.values()
        keys = chain.from_iterable(request.block_keys.firsts for request in requests)
        self.kv_cache.hasher.sweep(chain(self.kv_cache.pool.cached_keys(), keys))

    def free_blocks(self, request: Request) -> None:
        """Give back what a request holds: now, or when the step that still writes into it is processed."""
        if self.deferred_frees is not None and request.num_tokens_in_flight > 0:
            self.deferred_frees.free(request, self.num_steps)
        else:
            self.kv_cache.free(request)
