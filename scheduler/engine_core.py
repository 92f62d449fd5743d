"""The engine: one object that a model runner, or a simulator in its place, drives step by step.

    output = engine.schedule()            # who computes what
    ...                                   # the model runs
    engine.update(output, sampler)        # append the sampled tokens, stop, free

With scheduling ahead, a second `schedule()` may come before the first `update()`. A driver that can say how
the coming tokens go on may take many steps at once: `look_ahead` says for how many the engine is sure of what
it will do, `advance` does them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scheduler.admission import AdmissionGates, AdmissionRoom
from scheduler.bookkeeping import make_bookkeeping
from scheduler.cohort import Cohort, CohortScheduler, Forecast
from scheduler.config import KVCacheConfig, SchedulerConfig
from scheduler.connector import KVConnector, KVReport
from scheduler.kv_cache.grouped import DeferredFrees, GroupedKVCache
from scheduler.kv_cache.interface import KVCache
from scheduler.kv_cache.plain import PlainKVCache, plain_suffices
from scheduler.kv_events import KVEventLog, KVEventsObserver
from scheduler.output import EngineCoreOutputs, SchedulerOutput, SteadySteps, StepRun, expand, expand_outputs
from scheduler.policies import (
    AnyWaitingOrder,
    FcfsOrder,
    FcfsTail,
    LowestPriority,
    PreemptionMode,
    PriorityOrder,
    VictimPolicy,
)
from scheduler.release import Release
from scheduler.release import release as find_release
from scheduler.remote_loads import RemoteLoads
from scheduler.request import Request, RequestStatus
from scheduler.scheduler import Scheduler
from scheduler.speculation import AcceptAll, Drafter, DraftValidator, attach_drafts, drafter
from scheduler.state import (
    EngineState,
    PreemptionAccounts,
    PrefillInterval,
    PrefixCacheStats,
    SpecDecodeStats,
)
from scheduler.streaming import SessionInput, Sessions
from scheduler.update import OutputUpdate
from scheduler.waiting import FairQueue, WaitingLine, make_queue

RELEASE_0_16 = find_release("0.16.0")

Sampler = Callable[[SchedulerOutput], Sequence[list[int]]]
"""The model's answer to a step: the new tokens of each request that the output names, in its order."""


def _with_defaults(
    config: SchedulerConfig, kv_cache_config: KVCacheConfig, release: Release
) -> tuple[SchedulerConfig, KVCacheConfig]:
    """Settings left to the release take its defaults."""
    defaults = release.defaults
    if config.reserve_full_prompt is None:
        config = replace(config, reserve_full_prompt=defaults.reserve_full_prompt)
    if config.kv_load_failure_policy is None:
        config = replace(config, kv_load_failure_policy=defaults.kv_load_failure_policy)
    if kv_cache_config.window_retention_tokens == "release":
        kv_cache_config = replace(kv_cache_config, window_retention_tokens=defaults.window_retention_tokens)
    return config, kv_cache_config


class EngineCore:
    """A vLLM v1 engine without the model.

    `waiting_order` and `victim_policy` replace the choices of `config.policy`, `preemption_mode` is told of
    preemptions; `connector` gives access to KV outside the engine; `draft_validator` checks drafts against
    grammars. With a `forecast` requests in steady decode form a cohort (see `cohort`): decisions are the same
    and cost less, and outputs name only those who have something to do and count the others, unless
    `names_everybody` is set. `most_in_flight`: how many steps the driver has in flight at most, the one being
    planned included (default: as many as the configuration says).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_config: KVCacheConfig,
        *,
        waiting_order: AnyWaitingOrder | None = None,
        victim_policy: VictimPolicy | None = None,
        preemption_mode: PreemptionMode | None = None,
        connector: KVConnector | None = None,
        draft_validator: DraftValidator | None = None,
        release: Release = RELEASE_0_16,
        forecast: Forecast | None = None,
        most_in_flight: int | None = None,
        names_everybody: bool = False,
    ) -> None:
        config, kv_cache_config = _with_defaults(config, kv_cache_config, release)
        rules = release.rules
        if most_in_flight is None:
            most_in_flight = config.batches_in_flight(rules)
        drafting = drafter(
            config.speculative,
            release,
            caching=kv_cache_config.enable_caching,
            has_connector=connector is not None,
        )
        kv_cache: KVCache
        plain_kv: PlainKVCache | None = None
        deferred_frees: DeferredFrees | None = None
        frees_are_deferred = (
            connector is not None and rules.defer_frees_in_flight and config.batches_in_flight(rules) > 1
        )
        if plain_suffices(kv_cache_config, drafting, frees_are_deferred=frees_are_deferred):
            kv_cache = plain_kv = PlainKVCache(
                kv_cache_config, max_model_len=config.max_model_len, rules=rules, drafter=drafting
            )
        else:
            kv_cache = grouped = GroupedKVCache(
                kv_cache_config,
                max_model_len=config.max_model_len,
                rules=rules,
                drafter=drafting,
                largest_chunk=config.largest_chunk_tokens,
            )
            deferred_frees = DeferredFrees(grouped) if frees_are_deferred else None
        by_priority = config.policy == "priority"
        order = waiting_order or (PriorityOrder() if by_priority else FcfsOrder())
        if victim_policy is None:
            victim_policy = LowestPriority() if by_priority else FcfsTail()
        waiting = WaitingLine(
            make_queue(order, put_back_singly=rules.holders_first),
            make_queue(order, put_back_singly=True) if rules.holders_first else None,
        )
        self.release = release
        self.config = config
        self.kv_cache: KVCache = kv_cache
        self.bookkeeping = make_bookkeeping(
            config,
            rules,
            drafting,
            kv_cache,
            most_in_flight=most_in_flight,
            has_connector=connector is not None,
        )
        self._drafter = drafting
        self.state = EngineState(
            config,
            rules,
            kv_cache,
            waiting,
            self.bookkeeping,
            PrefillInterval(config.prefill_interval),
            connector,
            finished_by_client={} if config.include_finished_set else None,
            deferred_frees=deferred_frees,
        )
        if preemption_mode is not None:
            self.state.preemption_mode = preemption_mode
        self.draft_validator: DraftValidator = draft_validator or AcceptAll()
        self.sessions = Sessions(self.state)
        remote_loads = RemoteLoads(self.state)
        self.gates = AdmissionGates(self.state, remote_loads)
        self._cohort: Cohort | None = None
        if forecast is not None and plain_kv is not None and self._may_have_cohort(drafting):
            self._scheduler: Scheduler
            self._scheduler = with_cohort = CohortScheduler(
                self.state,
                victim_policy,
                self.gates,
                self.bookkeeping,
                drafting,
                plain_kv,
                forecast,
                most_in_flight,
            )
            self._cohort = with_cohort.cohort
        else:
            self._scheduler = Scheduler(self.state, victim_policy, self.gates, self.bookkeeping, drafting)
        self._update = OutputUpdate(self.state, self.bookkeeping, self.sessions, remote_loads)
        self._names_everybody = names_everybody and self._cohort is not None
        self._victim_policy = victim_policy
        self._kv_cache_config = kv_cache_config
        self._kv_events: KVEventLog | None = None
        self._kv_events_observer: KVEventsObserver | None = None
        self._compact: dict[SchedulerOutput, SchedulerOutput] = {}
        """By outputs that name everybody: those that the cohort wrote, until their update."""

    def _may_have_cohort(self, drafting: Drafter) -> bool:
        """A cohort needs that nothing would look at each request in each step (and a plain KV cache)."""
        config = self.config
        return (
            not isinstance(self.state.waiting.ordinary, FairQueue)
            and not drafting.num_drafts
            and config.max_loras is None
            and self.state.connector is None
            and config.prefill_interval == 1
            and self.state.decode_spacing == 1
            and not config.long_prefill_adaptive
        )

    # --- the step ---------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Plan the next step."""
        output = self._scheduler.schedule()
        return self._expand(output) if self._names_everybody else output

    def update(
        self, output: SchedulerOutput, sampler: Sampler, report: KVReport | None = None
    ) -> EngineCoreOutputs:
        """Apply a step's output. Steps are updated in the order in which they were planned.

        `sampler` is called once, with the output, and gives the new tokens of each request named in it, an
        empty list if none. By then the output names every request whose next token the forecast did not
        cover.
        """
        cohort = self._cohort
        if cohort is None:
            outputs = self._update.apply(output, sampler(output), report)
            if self._kv_events is not None:
                self._tell_kv_events()
            return outputs
        compact = self._compact.pop(output) if self._names_everybody else output
        num_unnamed = cohort.unfold(compact)
        outputs = self._update.apply(compact, sampler(compact), report, num_unnamed)
        cohort.note_updated(compact)
        return expand_outputs(compact, output, outputs) if self._names_everybody else outputs

    def _expand(self, output: SchedulerOutput) -> SchedulerOutput:
        """The step just planned with every request named."""
        cohort = self._cohort
        assert cohort is not None
        cohort.write_back_all()
        full = expand(output, self.state.running, cohort.clock)
        self._compact[full] = output
        return full

    def observe_output(self, observer: Callable[[Request], None]) -> None:
        """Let `observer` see each request with new tokens: its blocks are entered in the cache, not yet
        freed.
        """
        self._update.observer = observer

    def observe_kv_events(self, observer: KVEventsObserver) -> None:
        """Let `observer` see what enters and leaves the prefix cache: at the end of each update the events
        since the one before, if there are any.

        Before the first request. Decisions stay the same; the engine then looks at each request in each step.
        """
        if self.state.requests:
            raise ValueError("KV events can be observed only from the first request on")
        if self._cohort is not None:
            assert isinstance(self.kv_cache, PlainKVCache)
            self.kv_cache.run_pool.watcher = None
            self._cohort, self._names_everybody = None, False
            self._scheduler = Scheduler(
                self.state, self._victim_policy, self.gates, self.bookkeeping, self._drafter
            )
        self._kv_events = KVEventLog(self._kv_cache_config, self._drafter.hash_lookahead)
        self._kv_events_observer = observer
        self.kv_cache.tell_events(self._kv_events)

    def _tell_kv_events(self) -> None:
        assert self._kv_events is not None
        assert self._kv_events_observer is not None
        events = self._kv_events.take()
        if events:
            self._kv_events_observer(events)

    # --- many steps at once -----------------------------------------------------------------------------

    @property
    def is_steady(self) -> bool:
        """Whether `look_ahead` may know anything: all running requests are in steady decode."""
        cohort = self._cohort
        return cohort is not None and cohort.size == len(self.state.running) and not self._names_everybody

    def look_ahead(self, most: int) -> SteadySteps | None:
        """The coming steps, up to `most`, in which all running requests get one token each and nothing else
        happens, if nothing comes from outside; None if there are none. They are not taken yet.
        """
        cohort = self._cohort
        return None if cohort is None or self._names_everybody else cohort.look_ahead(most)

    def advance(self, num_steps: int) -> StepRun:
        """Take so many of the steps that `look_ahead` gave, at most all: as many turns of `schedule()` and
        `update()`, with as many steps in flight as before.

        If the last update has to look at somebody, it is left to the caller (`StepRun.output`).
        """
        assert self._cohort is not None
        return self._cohort.advance(num_steps)

    def settle(self) -> None:
        """Bring the counts of every request up to date (those of cohort members are kept only in sum).

        `running` and `requests` do it by themselves; it is for callers that read requests they hold.
        """
        if self._cohort is not None:
            self._cohort.write_back_all()

    def propose_drafts(self, output: SchedulerOutput, num_drafts: Sequence[int]) -> None:
        """Attach the drafts proposed after a synchronous step, one count per scheduled request."""
        attach_drafts(output.requests, num_drafts, self.draft_validator)

    # --- requests come and go ---------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Enqueue a new request."""
        self.state.add(request)

    def abort_requests(self, request_ids: Iterable[int]) -> None:
        """End requests from outside; ids that are unknown or have ended do nothing."""
        known = self.state.requests
        requests = [known[request_id] for request_id in request_ids if request_id in known]
        if self._cohort is not None:
            self._cohort.let_go(requests)
        self.state.finish(requests, RequestStatus.FINISHED_ABORTED)

    def submit_input(self, request_id: int, new_input: SessionInput | None) -> None:
        """The next input of a streaming session, or None for its end; an unknown id does nothing."""
        request = self.state.requests.get(request_id)
        if request is not None:
            self.sessions.submit(request, new_input)

    def grammar_ready(self, request_id: int) -> None:
        """The grammar that this request waits for is compiled."""
        self.gates.ready_grammars.add(request_id)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> tuple[bool, list[Request]]:
        """Empty the prefix cache. Returns whether that was possible (no block in use) and whom it
        preempted.
        """
        if preempt_running and self._cohort is not None:
            self._cohort.dissolve()
        return self.state.reset_prefix_cache(preempt_running)

    def has_unfinished_requests(self) -> bool:
        """Whether any request is waiting or running; idle streaming sessions do not count."""
        state = self.state
        if state.pause == 2:
            return False
        num_waiting = len(state.waiting.holders) if state.pause == 1 else state.waiting.size
        return len(state.running) + num_waiting > state.num_sessions_idle

    def has_work(self) -> bool:
        """Whether another step has anything to do or to report."""
        if self.has_unfinished_requests() or self.state.finished_req_ids:
            return True
        if not (self.state.connector and self.state.rules.step_while_blocks_are_held):
            return False
        return any(request.is_finished for request in self.state.requests.values())

    def pause(self, level: int) -> None:
        """0: go on as usual; 1: admit only requests that hold blocks; 2: schedule nothing."""
        if level not in (0, 1, 2):
            raise ValueError(f"pause levels are 0, 1 and 2, not {level}")
        self.state.pause = level

    # --- reads ------------------------------------------------------------------------------------------

    @property
    def admission_room(self) -> AdmissionRoom:
        """What must be free for an admission."""
        return self._scheduler.room

    @property
    def running(self) -> list[Request]:
        """Running requests in order. Not to be changed."""
        self.settle()
        return self.state.running

    @property
    def requests(self) -> dict[int, Request]:
        """All requests the engine knows, by id. Not to be changed."""
        self.settle()
        return self.state.requests

    def unnamed_ids(self) -> list[int]:
        """The ids of the running requests that outputs now count without naming them."""
        return [request.request_id for request in self.state.running if request.member is not None]

    @property
    def decode_spacing(self) -> int:
        """schedule() calls from one decode of a request to its next, if it has all it needs."""
        return self.state.decode_spacing

    @property
    def is_full(self) -> bool:
        """Whether no more requests may run."""
        return self._scheduler.is_full()

    def starves_beside_the_drafter(self, num_lacking: int) -> bool:
        """Whether no step gives so few lacking tokens: the drafter reads ahead over all of them, so they must
        come in one chunk, and a chunk may not be so long.
        """
        return self.most_of_a_prompt(num_lacking) < num_lacking <= self._drafter.reads_ahead

    def capped(self, num_lacking: int) -> int:
        """What of so many lacking tokens the cap on long prefills leaves a request in one step."""
        return self._scheduler.capped(num_lacking)

    def most_of_a_prompt(self, num_lacking: int) -> int:
        """The most of so many lacking tokens that a request gets in one step, with the requests of now."""
        return min(self._scheduler.capped(num_lacking), self._scheduler.token_budget)

    @property
    def num_running(self) -> int:
        """Requests in the running list."""
        return len(self.state.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the waiting queue, whatever they wait for."""
        return self.state.waiting.size

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far."""
        return self.state.num_preemptions

    @property
    def preemption_accounts(self) -> PreemptionAccounts:
        """What preemptions have cost the requests that ever were preempted."""
        return self.state.preemption_accounts

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """Prefix lookups so far."""
        return self.state.prefix_cache_stats

    @property
    def connector_prefix_cache_stats(self) -> PrefixCacheStats:
        """Lookups in the external cache so far."""
        return self.state.connector_prefix_cache_stats

    @property
    def spec_decode_stats(self) -> SpecDecodeStats:
        """Drafts verified so far."""
        return self._update.spec_decode_stats

    @property
    def waiting(self) -> list[Request]:
        """Waiting requests in the order in which the queue would give them out."""
        return list(self.state.waiting)
