"""Everything an engine knows between two steps, and how a request comes and goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from scheduler.bookkeeping import SyncBookkeeping
from scheduler.config import SchedulerConfig
from scheduler.connector import KVConnector
from scheduler.kv_cache.grouped import DeferredFrees
from scheduler.kv_cache.interface import KVCache
from scheduler.output import SchedulerOutput
from scheduler.policies.victim import PreemptionMode, Recompute
from scheduler.policies.view import unshared_blocks
from scheduler.release import Rules
from scheduler.request import Request, RequestStatus
from scheduler.waiting import WaitingLine


@dataclass(slots=True)
class PrefixCacheStats:
    """Prefix lookups as vLLM counts them: tokens asked for and found, requests once preempted kept apart.

    Early releases count lookups at every attempt, so `hits` can exceed the tokens really saved; those are in
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
class SpecDecodeStats:
    """Drafts verified so far: how many times, how many tokens, how many accepted."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_at: list[int] = field(default_factory=list)
    """How many drafts reached each position, the first one first."""
    accepted_at: list[int] = field(default_factory=list)
    """How many drafts were accepted up to each position or further."""

    def count(self, num_tokens: int, num_accepted: int) -> None:
        """Count one draft of so many tokens, of which the first `num_accepted` were accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += num_tokens
        self.num_accepted_tokens += num_accepted
        while len(self.drafted_at) < num_tokens:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
        for position in range(num_tokens):
            self.drafted_at[position] += 1
        for position in range(num_accepted):
            self.accepted_at[position] += 1

    def copy(self) -> SpecDecodeStats:
        """The counts as they are now."""
        return replace(self, drafted_at=self.drafted_at.copy(), accepted_at=self.accepted_at.copy())


@dataclass(slots=True)
class PreemptionAccount:
    """The preemptions of one request."""

    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that were given up; some of them were found again."""
    num_freed_blocks: int = 0
    """KV blocks that became free because of it: those it shared with nobody."""
    num_rehit_blocks: int = 0
    """Of these, found in the prefix cache when it came back."""
    num_reloaded_tokens: int = 0
    """Tokens that came back through the KV connector instead of being computed again."""
    longest_chain: int = 0
    """Most preemptions in a row without a single new output token in between."""
    chain: int = 0
    output_tokens_then: int = -1
    """Output tokens at its latest preemption."""
    freed_then: frozenset[int] = frozenset()
    """The blocks of its latest preemption, until it comes back."""


@dataclass(slots=True)
class PreemptionAccounts:
    """The block side of preemptions: who lost how many blocks, and how much was found again.

    Recomputed tokens are counted where tokens are scheduled (`Request.num_recomputed_tokens`).
    """

    by_request: dict[int, PreemptionAccount] = field(default_factory=dict)

    def preempted(self, request: Request, freed_blocks: Sequence[int]) -> None:
        """A request is losing its blocks, of which `freed_blocks` become free."""
        account = self.by_request.setdefault(request.request_id, PreemptionAccount())
        account.num_preemptions += 1
        account.num_lost_tokens += request.num_computed_tokens
        account.num_freed_blocks += len(freed_blocks)
        account.freed_then = frozenset(freed_blocks)
        fruitless = request.num_output_tokens == account.output_tokens_then
        account.chain = account.chain + 1 if fruitless else 1
        account.longest_chain = max(account.longest_chain, account.chain)
        account.output_tokens_then = request.num_output_tokens

    def found_again(self, request: Request, hits: Sequence[Sequence[int]]) -> int:
        """How many of `hits`, by KV group, are blocks that the request lost at its latest preemption."""
        account = self.by_request.get(request.request_id)
        if account is None:
            return 0
        return sum(len(account.freed_then.intersection(group)) for group in hits)

    def came_back(self, request: Request, num_rehit_blocks: int, num_external_tokens: int) -> None:
        """A preempted request holds blocks again, some of its own and loaded ones among them."""
        account = self.by_request[request.request_id]
        account.num_rehit_blocks += num_rehit_blocks
        account.num_reloaded_tokens += num_external_tokens
        account.freed_then = frozenset()


class PrefillInterval:
    """Which steps of an engine take prefills: while something decodes, one in every `interval` (1: all).

    In a held step unfinished prefills are passed over, and nobody with more than one token to compute is
    admitted, unless the waiting line is backed up.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._executed = 0
        self._last_prefill = -interval
        self._backed_up = False

    def holds_next(self, running: Iterable[Request]) -> bool:
        """Whether the step that is about to be planned is held."""
        return (
            self.interval > 1
            and self._executed + 1 - self._last_prefill < self.interval
            and not self._backed_up
            and any(not request.is_prefill_chunk for request in running)
        )

    def note_step(self, output: SchedulerOutput, waiting: WaitingLine, *, admitted: bool) -> None:
        """A step is planned; `admitted`: there was a pass over the waiting line."""
        if self.interval == 1:
            return
        if admitted and not output.holds_prefills:
            self._backed_up = waiting.size > len(waiting.deferred)
        if output.total_num_scheduled_tokens > 0:
            self._executed += 1
            if output.has_prefill_chunk or _admits_a_prefill(output):
                self._last_prefill = self._executed


def _admits_a_prefill(output: SchedulerOutput) -> bool:
    """Whether somebody was admitted with more than one token to compute."""
    befores = output.num_computed_before
    return any(
        befores[place] < output.requests[place].num_tokens - 1
        for place in range(output.num_running_scheduled, len(befores))
    )


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

    @property
    def decode_spacing(self) -> int:
        """schedule() calls from one decode of a request to its next, if it has all it needs."""
        spaced = self.config.async_scheduling and self.rules.pipelines_space_decodes
        return self.config.pipeline_parallel_size if spaced else 1

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
        delayed = False
        if self.connector is not None:
            self.kv_cache.drop_out_of_sight(request)  # nobody wants it sent
            delayed = self.connector.delays_free(request)
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
