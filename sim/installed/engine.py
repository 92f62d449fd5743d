"""Drives the installed vLLM's scheduler as `EngineCore` is driven, step by step.

Every decision is vLLM's. A request exists twice: vLLM's own, and ours, which the rest of the simulator holds
and which is brought up to date from the other whenever vLLM has been called. What vLLM does not report (in
which order requests were preempted, which blocks that freed) is noted when it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scheduler import (
    EngineCore,
    EngineCoreOutputs,
    FinishReason,
    KVCacheConfig,
    KVReport,
    Request,
    RequestStatus,
    Sampler,
    SchedulerConfig,
    SchedulerOutput,
)
from scheduler.connector import KVConnector
from scheduler.kv_events import KVEventsObserver
from scheduler.output import RequestOutput, SteadySteps, count_recomputed
from scheduler.state import PreemptionAccounts, PrefixCacheStats, SpecDecodeStats
from sim.installed.failures import failures
from sim.installed.kv_cache import CountedPool, InstalledKVCache

_LOOKUPS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


class _Pair:
    """A request as we know it and as vLLM does."""

    __slots__ = ("asked_with", "is_away", "ours", "theirs")

    def __init__(self, ours: Request, theirs: Any) -> None:
        self.ours = ours
        self.theirs = theirs
        self.is_away = False
        """Whether it was preempted and has not been scheduled since."""
        self.asked_with = -1
        """The local hits with which the connector was asked, tokens; -1 once its answer has been used."""

    def sync(self) -> None:
        """Bring our request up to date."""
        ours, theirs = self.ours, self.theirs
        missing = theirs.num_tokens - ours.num_tokens
        if missing > 0:
            for token in theirs.all_token_ids[ours.num_tokens : theirs.num_tokens]:
                ours.tokens.append(ours.num_tokens, token)
                ours.num_tokens += 1
            ours.num_output_tokens = theirs.num_output_tokens
        ours.num_computed_tokens = theirs.num_computed_tokens
        ours.num_output_placeholders = theirs.num_output_placeholders


class InstalledEngine(EngineCore):
    """The installed engine.

    `parts` is the module `sim.installed.parts`, which has imported vLLM, and `scheduler` what it has made for
    these settings. The mirror's own parts (`state`, `gates`, `bookkeeping`) do not exist.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_config: KVCacheConfig,
        parts: Any,
        scheduler: Any,
        connector: KVConnector | None,
    ) -> None:
        self.config = config
        self._parts = parts
        self._vllm = scheduler
        self._maker = parts.RequestMaker(scheduler, kv_cache_config, connector is not None)
        self._connector = connector
        self._pool = CountedPool(scheduler.kv_cache_manager.block_pool)
        block_sizes = [group.block_size for group in kv_cache_config.groups]
        self.kv_cache = InstalledKVCache(self._pool, kv_cache_config.enable_caching, block_sizes)
        self._pairs: dict[str, _Pair] = {}
        self._planned: dict[SchedulerOutput, Any] = {}
        self._preempted: list[Request] = []
        self._preemptions = 0
        self._accounts = PreemptionAccounts()
        self._lookups = PrefixCacheStats()
        self._external_lookups = PrefixCacheStats()
        self._drafts = SpecDecodeStats()
        scheduler._preempt_request = self._noting(scheduler._preempt_request)  # noqa: SLF001
        if connector is not None:
            scheduler.connector.engine = self

    # --- the step ---------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Let vLLM plan the next step, and say it in our words."""
        self._preempted = []
        with failures():
            theirs = self._vllm.schedule()
        output = SchedulerOutput(self.config.max_num_batched_tokens)
        for request_id, num_tokens in theirs.num_scheduled_tokens.items():
            self._note_scheduled(output, self._pairs[request_id], num_tokens)
        output.total_num_scheduled_tokens = theirs.total_num_scheduled_tokens
        output.token_budget -= theirs.total_num_scheduled_tokens
        for request_id, tokens in theirs.scheduled_spec_decode_tokens.items():
            if tokens:
                output.scheduled_spec_decode_tokens[int(request_id)] = len(tokens)
        for request in self._preempted:
            output.note_preempted(request)
        self._planned[output] = theirs
        return output

    def _note_scheduled(self, output: SchedulerOutput, pair: _Pair, num_tokens: int) -> None:
        request = pair.ours
        before = pair.theirs.num_computed_tokens - num_tokens
        if pair.is_away or request.status is not RequestStatus.RUNNING:
            self._note_admitted(output, pair, before)
        if before < request.high_water_tokens:
            again = count_recomputed(request, before, num_tokens)
            request.num_recomputed_tokens += again
            output.num_recomputed_tokens += again
        output.requests.append(request)
        output.num_scheduled_tokens.append(num_tokens)
        output.num_computed_before.append(before)
        output.samples.append(not pair.theirs.is_prefill_chunk)
        pair.sync()
        request.is_prefill_chunk = bool(pair.theirs.is_prefill_chunk)

    def _note_admitted(self, output: SchedulerOutput, pair: _Pair, before: int) -> None:
        request = pair.ours
        output.note_admitted(request, resumed=pair.is_away)
        if self._connector is None:
            self._note_hits(pair, before, 0)
        if request.num_cached_tokens == -1:
            request.num_cached_tokens = before
        pair.is_away = False
        request.status = RequestStatus.RUNNING

    def _note_hits(self, pair: _Pair, num_hits: int, num_external_tokens: int) -> None:
        """A lookup has led to an admission or to a load."""
        self._lookups.saved_tokens += num_hits
        if pair.ours.num_preemptions:
            sizes = self.kv_cache.block_sizes
            tables = self._tables(pair)
            hits = [table[: num_hits // size] for table, size in zip(tables, sizes, strict=True)]
            found = self._accounts.found_again(pair.ours, hits)
            self._accounts.came_back(pair.ours, found, num_external_tokens)

    def _tables(self, pair: _Pair) -> Sequence[list[int]]:
        tables: Sequence[list[int]] = self._vllm.kv_cache_manager.get_block_ids(pair.theirs.request_id)
        return tables

    def _noting(self, preempt: Callable[..., Any]) -> Callable[..., Any]:
        """vLLM's preemption of a request, noted while it still holds its blocks."""

        def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
            pair = self._pairs[request.request_id]
            pair.sync()
            ours = pair.ours
            self._accounts.preempted(ours, self._pool.unshared(self._tables(pair)))
            ours.high_water_tokens = max(ours.high_water_tokens, ours.num_computed_tokens)
            ours.num_preemptions += 1
            ours.status = RequestStatus.PREEMPTED
            self._preemptions += 1
            self._preempted.append(ours)
            pair.is_away = True
            found = preempt(request, *args, **kwargs)
            pair.sync()
            return found

        return noted

    def update(
        self, output: SchedulerOutput, sampler: Sampler, report: KVReport | None = None
    ) -> EngineCoreOutputs:
        """Hand the step's tokens to vLLM, and say in our words what came of it."""
        theirs = self._planned.pop(output)
        ids = list(theirs.num_scheduled_tokens)
        vllm_id = self._parts.vllm_id
        report = report or KVReport()
        answer = self._parts.runner_output(
            ids,
            sampler(output),
            [vllm_id(request_id) for request_id in report.received],
            [vllm_id(request_id) for request_id in report.sent],
            set(report.invalid_blocks),
        )
        pairs = {request_id: self._pairs[request_id] for request_id in ids if request_id in self._pairs}
        given: dict[str, RequestOutput] = {}
        with failures():
            answered = self._vllm.update_from_output(theirs, answer)
        for outputs in answered.values():
            self._count(outputs.scheduler_stats)
            for each in outputs.outputs:
                pair = self._pairs[each.request_id]
                reason = None if each.finish_reason is None else FinishReason(str(each.finish_reason))
                if each.new_token_ids or reason is not None:
                    given[each.request_id] = (pair.ours, len(each.new_token_ids), reason)
                if reason is not None:
                    pairs[each.request_id] = pair
        for request_id, pair in pairs.items():
            pair.sync()
            if request_id in given and given[request_id][2] is not None:
                self._ended(request_id, given[request_id][2])
        in_order = [given.pop(request_id) for request_id in ids if request_id in given]
        return EngineCoreOutputs([*in_order, *given.values()])

    def _ended(self, request_id: str, reason: FinishReason | None) -> None:
        pair = self._pairs.pop(request_id)
        statuses = {
            FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
            FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
            FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
        }
        pair.ours.status = statuses.get(reason or FinishReason.ERROR, RequestStatus.FINISHED_ERROR)

    def _count(self, stats: Any) -> None:
        """Add what vLLM has counted since it was last asked."""
        if stats is None:
            return
        self._count_lookups(self._lookups, stats.prefix_cache_stats)
        self._count_lookups(self._external_lookups, stats.connector_prefix_cache_stats)
        drafts = stats.spec_decoding_stats
        if drafts is not None:
            self._drafts.num_drafts += drafts.num_drafts
            self._drafts.num_draft_tokens += drafts.num_draft_tokens
            self._drafts.num_accepted_tokens += drafts.num_accepted_tokens

    def _count_lookups(self, total: PrefixCacheStats, stats: Any) -> None:
        if stats is not None:
            for name in _LOOKUPS:
                setattr(total, name, getattr(total, name) + getattr(stats, name))

    def observe_kv_events(self, observer: KVEventsObserver) -> None:
        """Not offered: an installed engine publishes its events itself."""
        raise NotImplementedError("an installed engine tells no KV events; engine.scheduler: mirror does")

    def propose_drafts(self, output: SchedulerOutput, num_drafts: Sequence[int]) -> None:
        """The drafts proposed after a synchronous step, one count per scheduled request."""
        ids = [self._parts.vllm_id(request.request_id) for request in output.requests]
        self._vllm.update_draft_token_ids(self._parts.drafts(ids, num_drafts))

    # --- many steps at once: every step is vLLM's -------------------------------------------------------

    @property
    def is_steady(self) -> bool:
        """Never: nobody knows what vLLM will do."""
        return False

    def look_ahead(self, most: int) -> SteadySteps | None:
        """Nothing is sure."""
        return None

    def settle(self) -> None:
        """Requests are up to date."""

    # --- requests come and go ---------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Enqueue a new request."""
        theirs = self._maker.make(request)
        self._pairs[theirs.request_id] = _Pair(request, theirs)
        self._vllm.add_request(theirs)

    def abort_requests(self, request_ids: Iterable[int]) -> None:
        """End requests from outside; ids that are unknown or have ended do nothing."""
        for request_id in map(self._parts.vllm_id, request_ids):
            if request_id in self._pairs:
                self._vllm.finish_requests(request_id, self._parts.ABORTED)
                self._pairs[request_id].sync()
                self._ended(request_id, FinishReason.ABORT)

    def grammar_ready(self, request_id: int) -> None:
        """The grammar that this request waits for is compiled."""
        pair = self._pairs.get(self._parts.vllm_id(request_id))
        if pair is not None:
            pair.theirs.structured_output_request.grammar = self._parts.compiled_grammar()

    def has_unfinished_requests(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._vllm.has_unfinished_requests())

    def has_work(self) -> bool:
        """Whether another step has anything to do or to report."""
        return bool(self._vllm.has_requests())

    def pause(self, level: int) -> None:
        """0: go on as usual; 1: admit only requests that hold blocks; 2: schedule nothing."""
        self._vllm.set_pause_state(self._parts.pause_state(level))

    # --- vLLM's connector asks --------------------------------------------------------------------------

    def match(self, request: Any, num_local_tokens: int) -> tuple[int | None, bool]:
        """What our connector has beyond the local hits; None: ask again."""
        assert self._connector is not None
        pair = self._pairs[request.request_id]
        found = self._connector.match(pair.ours, num_local_tokens)
        if found is None:
            return None, False
        pair.asked_with = num_local_tokens
        return found.num_tokens, found.asynchronous and found.num_tokens > 0

    def note_allocated(self, request: Any, num_external_tokens: int) -> None:
        """Blocks are allocated. A request that comes back from its load was not looked up again."""
        assert self._connector is not None
        pair = self._pairs[request.request_id]
        if pair.asked_with >= 0:
            self._note_hits(pair, pair.asked_with, num_external_tokens)
            pair.asked_with = -1
            self._connector.note_allocated(pair.ours, num_external_tokens)

    def delays_free(self, request: Any) -> bool:
        """A request has ended."""
        assert self._connector is not None
        pair = self._pairs[request.request_id]
        pair.sync()
        return self._connector.delays_free(pair.ours)

    # --- reads ------------------------------------------------------------------------------------------

    def _ours(self, queue: Iterable[Any]) -> list[Request]:
        return [self._pairs[request.request_id].ours for request in queue]

    @property
    def running(self) -> list[Request]:
        """Running requests in order."""
        return self._ours(self._vllm.running)

    @property
    def waiting(self) -> list[Request]:
        """Waiting requests in vLLM's order."""
        holders = getattr(self._vllm, "kv_holding_waiting", ())
        return self._ours([*holders, *self._vllm.waiting])

    @property
    def requests(self) -> dict[int, Request]:
        """All requests the engine knows, by id."""
        return {int(request_id): pair.ours for request_id, pair in self._pairs.items()}

    def unnamed_ids(self) -> list[int]:
        """None: outputs name everybody."""
        return []

    @property
    def decode_spacing(self) -> int:
        """schedule() calls from one decode of a request to its next: later releases space them in pipelines,
        with the later model runner.
        """
        spaced = bool(self._vllm.use_v2_model_runner)
        return int(getattr(self._vllm, "decode_stagger", 1)) if spaced else 1

    @property
    def num_running(self) -> int:
        """Requests in the running list."""
        return int(self._vllm.get_request_counts()[0])

    @property
    def num_waiting(self) -> int:
        """Requests in the waiting queue, whatever they wait for."""
        return int(self._vllm.get_request_counts()[1])

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far."""
        return self._preemptions

    @property
    def preemption_accounts(self) -> PreemptionAccounts:
        """What preemptions have cost the requests that ever were preempted."""
        return self._accounts

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """Prefix lookups so far."""
        self._count(self._vllm.make_stats())
        return self._lookups

    @property
    def connector_prefix_cache_stats(self) -> PrefixCacheStats:
        """Lookups in the external cache so far."""
        self._count(self._vllm.make_stats())
        return self._external_lookups

    @property
    def spec_decode_stats(self) -> SpecDecodeStats:
        """Drafts verified so far."""
        return self._drafts
