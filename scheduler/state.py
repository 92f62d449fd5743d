"""Everything an engine knows between two steps, and how a request comes and goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from scheduler.bookkeeping import SyncBookkeeping
from scheduler.config import SchedulerConfig
from scheduler.connector import KVConnector
from scheduler.kv_cache.grouped import DeferredFrees
from scheduler.kv_cache.interface import KVCache
from scheduler.output import SchedulerOutput
from scheduler.policies.victim import PreemptionMode, Recompute
from scheduler.policies.view import unshared_blocks
from scheduler.prefill_interval import PrefillInterval
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.stats import PreemptionAccounts, PrefixCacheStats
from scheduler.status import RequestStatus
from scheduler.waiting import WaitingLine


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
        if self.interval.interval > 1:
            admitted = not output.preempted and self.pause != 2
            self.interval.note_step(output, self.waiting, admitted=admitted)
        self.num_steps += output.total_num_scheduled_tokens > 0
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

    # --- a request's life -------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Enqueue a new request."""
        self.requests[request.request_id] = request
        self.waiting.add(request)
        if self.kv_cache.hasher.num_numbered > self.kv_cache.hasher.sweep_at:
            self.sweep_hashes()

    def preempt(self, request: Request, *, by_reset: bool = False) -> None:
        """Take a running request's blocks and send it back to the front of the waiting queue.

        vLLM: `Scheduler._preempt_request`. The caller has removed it from the running list. Output tokens,
        block hashes and the cached-token count of its first scheduling are kept.
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

    def finish(self, requests: Iterable[Request], status: RequestStatus) -> None:
        """End requests from outside (abort, error), one after another, whatever they are doing.

        vLLM: `Scheduler.finish_requests`.
        """
        ending = [request for request in dict.fromkeys(requests) if not request.is_finished]
        leaving = set(ending)
        if any(request.status is RequestStatus.RUNNING for request in ending):
            self.running[:] = [request for request in self.running if request not in leaving]
        if any(request.status is not RequestStatus.RUNNING for request in ending):
            self.waiting.remove({r for r in ending if r.status is not RequestStatus.RUNNING})
            for request in ending:
                self.waiting.undefer(request)
        for request in ending:
            loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
            if loading:
                loading = request.request_id not in self.received_loads
                self.received_loads.discard(request.request_id)
                self.failed_loads.discard(request.request_id)
            if request.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
                self.num_sessions_idle -= 1
            request.move_to(status)
            self.end(request, blocks_are_being_written=loading)

    def end(self, request: Request, *, blocks_are_being_written: bool = False) -> None:
        """Report a request that has got its final status, and release its blocks unless they are needed.

        vLLM: `Scheduler._free_request`. Blocks that a load still writes into, or that the connector still
        sends, are released when it says so.
        """
        delayed = self.connector is not None and self.connector.delays_free(request)
        self.finished_req_ids.append(request.request_id)
        if self.finished_by_client is not None:
            self.finished_by_client.setdefault(request.client_index, set()).add(request.request_id)
        if self.prefills_under_way:
            self.prefills_under_way.pop(request.request_id, None)
        if not delayed and not blocks_are_being_written:
            self.release(request)

    def release(self, request: Request) -> None:
        """Give an ended request's blocks back and forget it (vLLM: `Scheduler._free_blocks`)."""
        self.free_blocks(request)
        request.block_keys.clear()
        if request.request_id in self.requests:
            del self.requests[request.request_id]

    # --- the prefix cache -------------------------------------------------------------------------------

    def reset_prefix_cache(self, preempt_running: bool) -> tuple[bool, list[Request]]:
        """Empty the prefix cache; returns success and whom it preempted, in that order.

        It is refused while blocks are in use. With `preempt_running` the running requests give theirs up
        first, from the tail, so that they keep their order at the front of the queue; if waiting requests
        hold blocks it is then still refused, and the preempted stay preempted.
        """
        preempted = []
        if preempt_running:
            while self.running:
                request = self.running.pop()
                self.preempt(request, by_reset=True)
                preempted.append(request)
        return self.kv_cache.reset(), preempted

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
