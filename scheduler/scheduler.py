"""The schedule page: how one step is put together, the mirror of vLLM's `Scheduler.schedule`.

There is no prefill phase and no decode phase: every request has known tokens and computed tokens, and each
step gives out a budget of tokens that lets the second count catch up with the first. Running requests come
first, in order, and preempt when blocks run out. Then, only if nobody was preempted, waiting requests are
admitted from the head of the line. Chunked prefill, prefix hits, speculation and scheduling ahead all follow
from this.

Each piece names what it stands for in vLLM (in `vllm/v1/core/sched/scheduler.py` unless it says otherwise).
`rules` are what releases differ in (see `release`); `python -m scheduler.page 0.16.0` prints this page with
the rules of that release.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from scheduler.admission import AdmissionGates, AdmissionRoom
from scheduler.bookkeeping import SyncBookkeeping
from scheduler.connector import ExternalMatch
from scheduler.errors import InvariantError
from scheduler.kv_cache.interface import PrefixHits
from scheduler.output import SchedulerOutput
from scheduler.policies import FcfsTail, RunningView, VictimPolicy, VictimView
from scheduler.request import PREEMPTED, RUNNING, Request, RequestStatus
from scheduler.speculation import Drafter, use_drafts
from scheduler.state import EngineState

_NO_MATCH: Final = ExternalMatch(0, False)


class Verdict(Enum):
    """What is to be done with the request at the head of the waiting line."""

    ADMIT = 0
    SET_ASIDE = 1
    """Pass it over and look at those behind it (vLLM: `continue`, after moving it to the skipped ones)."""
    STOP = 2
    """It must wait, and everybody behind it (vLLM: `break`)."""


ADMIT: Final = Verdict.ADMIT
SET_ASIDE: Final = Verdict.SET_ASIDE
STOP: Final = Verdict.STOP


class Candidate:
    """A waiting request while it is looked at: what need not be computed, and its tokens in this step."""

    __slots__ = ("external", "hits", "num_computed_tokens", "num_tokens", "request")

    def __init__(self, request: Request, hits: PrefixHits) -> None:
        self.request = request
        self.hits = hits
        """Local hits (vLLM: `new_computed_blocks`)."""
        self.external = _NO_MATCH
        """What the connector has beyond them (vLLM: `num_external_computed_tokens`, `load_kv_async`)."""
        self.num_computed_tokens = request.num_computed_tokens
        """Its own, or those of the hits and the match."""
        self.num_tokens = 0
        """Tokens for it in this step (vLLM: `num_new_tokens`)."""


class Scheduler:
    """Plans steps on an engine's state."""

    def __init__(
        self,
        state: EngineState,
        victim_policy: VictimPolicy,
        gates: AdmissionGates,
        bookkeeping: SyncBookkeeping,
        drafter: Drafter,
    ) -> None:
        config = state.config
        self.state = state
        self.rules = state.rules
        self.victim_policy = victim_policy
        self.tail_is_victim = type(victim_policy) is FcfsTail
        self.running_view = RunningView(state.running, state.kv_cache.pool)
        self.gates = gates
        self.bookkeeping = bookkeeping
        self.drafter = drafter
        self.room = AdmissionRoom(state, drafter)
        self.token_budget = min(
            config.max_num_scheduled_tokens or config.max_num_batched_tokens, config.max_num_batched_tokens
        )
        self.max_num_running = min(config.max_active or config.max_num_seqs, config.max_num_seqs)
        self.decode_spacing = state.decode_spacing
        self.takes_shortcut = not drafter.num_drafts and self.decode_spacing == 1
        """Whether the usual case, steady decode, has a way of its own: it only saves time."""
        self._num_calls = 0
        self._num_admitted = 0

    def schedule(self) -> SchedulerOutput:
        """Plan one step. What is planned counts as computed from here on."""
        state = self.state
        budget = 0 if state.pause == 2 else self.token_budget
        output = SchedulerOutput(
            budget,
            state.config.max_num_batched_tokens,
            self.drafter.drafting_slots,
            holds_prefills=state.interval.holds_next(state.running),
        )
        state.kv_cache.begin_step()  # vLLM: KVCacheManager.new_step_starts
        self._num_calls += 1
        self.schedule_running(output)
        if not output.preempted and state.pause != 2:
            self.admit_waiting(output)
        state.kv_cache.end_step()
        output.total_num_scheduled_tokens = budget - output.token_budget
        self.bookkeeping.note_scheduled(output)  # vLLM: _update_after_schedule
        if self.decode_spacing > 1:
            for request in output.requests:
                if not request.is_prefill_chunk:
                    request.next_decode_call = self._num_calls + self.decode_spacing
        state.note_step(output)
        return output

    # --- phase 1: running requests (vLLM: the loop over `self.running`) ---------------------------------

    def schedule_running(self, output: SchedulerOutput) -> None:
        """Give running requests their tokens, in order, and preempt for blocks."""
        running, index = self.state.running, 0
        while index < len(running) and output.num_tokens_left > 0:
            if self.takes_shortcut:
                index = output.add_while_steady(running, index)
                if index == len(running) or output.num_tokens_left <= 0:
                    return
            request = running[index]
            index += 1
            num_tokens = self._num_running_tokens(request, output)
            if num_tokens > 0 and not self._schedule_one(request, num_tokens, output):
                index = self._preempt_for(request, num_tokens, index, output)

    def try_running(self, request: Request, output: SchedulerOutput) -> bool:
        """Give one running request the tokens of this step; False if it lacks blocks. Preempts nobody.

        Not on vLLM's page: the cohort walks with it over those who have something to do.
        """
        num_tokens = self._num_running_tokens(request, output)
        return num_tokens <= 0 or self._schedule_one(request, num_tokens, output)

    def _num_running_tokens(self, request: Request, output: SchedulerOutput) -> int:
        """Tokens for a running request in this step (vLLM: `num_new_tokens`); none: it is passed over."""
        computed, in_flight = request.num_computed_tokens, request.num_output_placeholders
        if in_flight > 0 and computed + 2 - in_flight >= request.max_total_tokens:
            return 0  # the step in flight must end it (vLLM: the test of `num_output_placeholders`)
        if output.holds_prefills and request.is_prefill_chunk:
            return 0
        if self._num_calls < request.next_decode_call:
            return 0  # other requests decode in between, so that every stage has some
        num_tokens = self.capped(request.num_tokens + in_flight + request.num_draft_tokens - computed)
        num_tokens = min(num_tokens, output.num_tokens_left)
        num_tokens = min(num_tokens, self.state.config.max_model_len - 1 - computed)
        num_tokens = self.state.kv_cache.cut_at_state_boundary(request, computed, num_tokens)
        return self._feed_drafter(request, computed, num_tokens)

    def capped(self, num_tokens: int) -> int:
        """How many of these tokens a request may get in one step: a long prefill is cut.

        vLLM: `long_prefill_token_threshold`.
        """
        config, state = self.state.config, self.state
        threshold = config.long_prefill_token_threshold
        if config.long_prefill_adaptive and threshold:
            num_requests = len(state.running) + state.waiting.size
            threshold = max(threshold, config.max_num_batched_tokens // max(num_requests, 1))
        if not 0 < threshold < num_tokens:
            return num_tokens
        if self.rules.lone_requests_ignore_the_threshold and len(state.running) + state.waiting.size <= 1:
            return num_tokens
        return threshold

    def _feed_drafter(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """A prefill leaves no fewer tokens for its last chunk than the drafter reads ahead.

        vLLM: since 0.33.0, beside the cut of a chunk; before that the drafter reads nothing ahead here.

        It may leave none for this step. If no step can give it as many, it never goes on (see `standstill`).
        """
        left = request.num_tokens - num_computed_tokens - num_tokens
        if 0 < left < self.drafter.reads_ahead:
            return max(num_tokens - (self.drafter.reads_ahead - left), 0)
        return num_tokens

    def _schedule_one(self, request: Request, num_tokens: int, output: SchedulerOutput) -> bool:
        """Schedule a running request; False if there are no blocks for it.

        vLLM: `KVCacheManager.allocate_slots`, which gives None then; `num_scheduled_tokens`,
        `scheduled_spec_decode_tokens` and the token budget.
        """
        if not self.state.kv_cache.grow(request, num_tokens, self.drafter.lookahead_slots):
            return False
        if request.num_draft_tokens:
            use_drafts(request, num_tokens, output)
        if request.is_prefill_chunk:
            output.has_prefill_chunk = True
        output.add(request, num_tokens)
        return True

    def _preempt_for(self, request: Request, num_tokens: int, index: int, output: SchedulerOutput) -> int:
        """Preempt until the request can be scheduled or has lost its own place; returns where to go on.

        vLLM: the inner loop around `allocate_slots`, with `_preempt_request`. A victim that was already
        scheduled in this step is taken out of it, and the walk steps back for it. In early releases one that
        stands before the walk but was passed over does not move it, so then one request is left out. A
        request that was its own victim ends the walk, under FCFS in all releases.
        """
        state, running = self.state, self.state.running
        while True:
            place = self._choose_victim(request)
            victim = running[place]
            if state.deferred_frees is not None and victim.num_tokens_in_flight > 0:
                return len(running)
            del running[place]
            if output.take_out(victim) or (self.rules.victims_move_the_walk and place < index):
                index -= 1
            state.preempt(victim)
            output.note_preempted(victim)
            if victim is request:
                goes_on = self.rules.self_victims_do_not_end_the_phase and not self.tail_is_victim
                return index if goes_on else len(running)
            if self._schedule_one(request, num_tokens, output):
                return index

    def _choose_victim(self, needy: Request) -> int:
        """Ask the policy for a place in the running list; `ValueError` if it names none.

        vLLM: `self.running.pop()`, or the `max` by priority and arrival time under PRIORITY.
        """
        place = self.victim_policy.choose(self.running_view, VictimView(needy, self.state.kv_cache.pool))
        if not 0 <= place < len(self.state.running):
            name = type(self.victim_policy).__name__
            raise ValueError(f"{name} chose victim {place} of {len(self.state.running)} running requests")
        return place

    # --- phase 2: waiting requests (vLLM: the loop over `self.waiting`) ---------------------------------

    def admit_waiting(self, output: SchedulerOutput) -> None:
        """Admit from the head of the line; nobody is preempted for it."""
        state, waiting = self.state, self.state.waiting
        while output.num_tokens_left > 0 and not self.is_full():
            request = waiting.head(only_holders=state.pause == 1)
            if request is None:
                break
            if self.gates.hold_back(request, output):
                output.note_held_back(request)
                self._set_aside()
                continue
            candidate = Candidate(request, state.kv_cache.no_hits())
            if not request.num_computed_tokens and not self._find_computed(candidate):
                self._set_aside()
                continue
            loads = candidate.external.asynchronous
            verdict = ADMIT if loads else self._cut_first_chunk(candidate, output)
            if verdict is SET_ASIDE:
                self._set_aside()
                continue
            if verdict is STOP or not self._allocate(candidate):
                output.note_turned_away(request, for_blocks=verdict is not STOP)
                break
            waiting.take_head()
            if loads:
                self._start_load(candidate)
            else:
                self._admit(candidate, output)
        waiting.put_back()  # vLLM: prepend_requests(skipped_waiting_requests)

    def is_full(self) -> bool:
        """Whether no more requests may run (vLLM: `len(self.running) == self.max_num_running_reqs`)."""
        num_running = len(self.state.running)
        if self.rules.idle_sessions_take_a_place:
            num_running += self.state.num_sessions_idle
        return num_running >= self.max_num_running

    def _set_aside(self) -> None:
        """Pass the head of the line over (vLLM: `skipped_waiting_requests.prepend_request`)."""
        self.state.waiting.set_aside(self.state.waiting.take_head())

    def _find_computed(self, candidate: Candidate) -> bool:
        """Find out what need not be computed; False if the connector does not know yet.

        vLLM: `KVCacheManager.get_computed_blocks` and the connector's `get_num_new_matched_tokens`.
        """
        state, kv_cache, request = self.state, self.state.kv_cache, candidate.request
        if kv_cache.caching and not request.skip_reading_prefix_cache:
            if self.drafter.hash_lookahead and request.resumable:
                kv_cache.hasher.rebuild(request)
            candidate.hits = kv_cache.find_hits(request)
            if not self.rules.count_lookups_when_admitted:
                state.prefix_cache_stats.count(request, request.num_tokens, candidate.hits.num_tokens)
        if state.connector is not None:
            match = state.connector.match(request, candidate.hits.num_tokens)
            if request.skip_reading_prefix_cache and self.rules.skipping_readers_still_ask_the_connector:
                match = _NO_MATCH
            if match is None:
                return False
            candidate.external = match
            request.num_external_tokens = match.num_tokens
        candidate.num_computed_tokens = candidate.hits.num_tokens + candidate.external.num_tokens
        return True

    def _cut_first_chunk(self, candidate: Candidate, output: SchedulerOutput) -> Verdict:
        """Work out the tokens of the request's first step (vLLM: `num_new_tokens`)."""
        config, request, computed = self.state.config, candidate.request, candidate.num_computed_tokens
        num_tokens = request.num_tokens - computed
        if num_tokens <= 0:  # vLLM stops with an assertion here: a session restarted with drafts in flight
            raise InvariantError(
                f"request {request.request_id} is to be admitted with {computed} computed of "
                f"{request.num_tokens} tokens"
            )
        if output.holds_prefills and num_tokens > 1:
            return STOP
        if self.rules.pad_new_decodes:
            padding = self._padding(num_tokens, computed, output)
            num_tokens += padding
            if padding and num_tokens > output.num_tokens_left:
                return STOP
        num_tokens = self.capped(num_tokens)
        if not config.enable_chunked_prefill and num_tokens > output.num_tokens_left:
            return STOP
        num_tokens = min(num_tokens, output.num_tokens_left)
        num_tokens = self.state.kv_cache.cut_at_state_boundary(request, computed, num_tokens)
        if num_tokens == 0:
            return STOP
        candidate.num_tokens = self._feed_drafter(request, computed, num_tokens)
        return ADMIT if candidate.num_tokens else SET_ASIDE

    def _padding(self, num_tokens: int, computed: int, output: SchedulerOutput) -> int:
        """Dummy drafts that make an admission of one token look like the running decodes.

        vLLM: since 0.26.0, padding of new decodes in batches with speculation.
        """
        drafter = self.drafter
        if not drafter.num_drafts or drafter.drafts_by_batch or num_tokens != 1 or output.has_prefill_chunk:
            return 0
        if not (output.num_running_scheduled or computed):
            return 0
        fits = computed + drafter.num_drafts + 2 <= self.state.config.max_model_len
        return drafter.num_drafts if fits else 0

    def _allocate(self, candidate: Candidate) -> bool:
        """Allocate the blocks of the first step, or of the load; False if there are too few.

        vLLM: `KVCacheManager.allocate_slots`, `effective_lookahead_tokens`.
        """
        state, request, loads = self.state, candidate.request, candidate.external.asynchronous
        looked_up = request.num_computed_tokens == 0
        keep_free = self.room.keep_free(request, candidate.hits, candidate.external.num_tokens, loading=loads)
        if keep_free is None:
            return False
        lookahead = self.drafter.lookahead_slots
        if lookahead and (loads if self.rules.lookahead_at_admission else looked_up):
            lookahead = 0
        allocated = state.kv_cache.allocate(
            request,
            candidate.num_tokens,
            num_lookahead_tokens=lookahead,
            hits=candidate.hits,
            num_external_tokens=candidate.external.num_tokens,
            enter_cache=not loads,
            keep_free=keep_free,
        )
        if allocated and looked_up:
            self._count_lookup(candidate)
        return allocated

    def _count_lookup(self, candidate: Candidate) -> None:
        """A lookup has led to an admission or to a load: count it, and tell the connector.

        vLLM: `prefix_cache_stats.record` (since 0.29.0 here) and `update_state_after_alloc`.
        """
        state, request = self.state, candidate.request
        hits, external = candidate.hits, candidate.external
        stats = state.prefix_cache_stats
        stats.saved_tokens += hits.num_tokens
        if request.num_preemptions:
            accounts = state.preemption_accounts
            accounts.came_back(request, accounts.found_again(request, hits.blocks), external.num_tokens)
        else:
            request.num_local_hit_tokens = hits.num_tokens
            request.num_loaded_tokens = external.num_tokens
        was_read = state.kv_cache.caching and not request.skip_reading_prefix_cache
        if self.rules.count_lookups_when_admitted and was_read:
            stats.count(request, request.num_tokens, hits.num_tokens)
        if state.connector is not None:
            state.connector.note_allocated(request, external.num_tokens)
            queried = request.num_tokens - hits.num_tokens
            state.connector_prefix_cache_stats.count(request, queried, external.num_tokens)

    def _start_load(self, candidate: Candidate) -> None:
        """Let the request wait for its KV, holding its blocks (vLLM: `if load_kv_async`)."""
        state, request = self.state, candidate.request
        request.move_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        if self.rules.loads_count_exactly:
            request.num_computed_tokens = candidate.num_computed_tokens
        state.waiting.set_aside(request)
        state.prefills_under_way[request.request_id] = request

    def _admit(self, candidate: Candidate, output: SchedulerOutput) -> None:
        """Let the request run.

        vLLM: `self.running.append`, `scheduled_new_reqs` and `scheduled_resumed_reqs`, `num_cached_tokens`.
        """
        state, request, num_tokens = self.state, candidate.request, candidate.num_tokens
        computed = candidate.num_computed_tokens
        output.note_admitted(request, resumed=request.status is PREEMPTED)
        request.move_to(RUNNING)
        state.running.append(request)
        self._num_admitted += 1
        request.running_order = self._num_admitted
        request.num_computed_tokens = computed
        if request.num_cached_tokens == -1:
            request.num_cached_tokens = computed
        dummies = num_tokens - (request.num_tokens - computed)
        if dummies > 0:
            output.scheduled_spec_decode_tokens[request.request_id] = dummies
        output.add(request, num_tokens)
        if state.connector is not None and request.is_prefill_chunk:
            state.prefills_under_way[request.request_id] = request
