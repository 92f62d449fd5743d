"""The schedule page: how one step is put together.

There is no prefill phase and no decode phase: every request has known tokens and computed tokens, and each
step gives out a budget of tokens that lets the second count catch up with the first. Running requests come
first, in order, and preempt when blocks run out. Then, only if nobody was preempted, waiting requests are
admitted from the head of the line. Chunked prefill, prefix hits, speculation and scheduling ahead all follow
from this.
"""

from __future__ import annotations

from typing import Final

from scheduler.admission import AdmissionRoom
from scheduler.async_scheduling import SyncBookkeeping
from scheduler.connector import ExternalMatch
from scheduler.errors import InvariantError
from scheduler.gates import AdmissionGate
from scheduler.kv_cache.interface import PrefixHits
from scheduler.output import SchedulerOutput
from scheduler.policies import FcfsTail, RunningView, VictimPolicy, VictimView
from scheduler.request import Request
from scheduler.speculation import Drafter, use_drafts
from scheduler.state import EngineState
from scheduler.status import PREEMPTED, RUNNING, WAITING, RequestStatus

_NO_MATCH: Final = ExternalMatch(0, False)


class Scheduler:
    """Plans steps on an engine's state."""

    def __init__(
        self,
        state: EngineState,
        victim_policy: VictimPolicy,
        gates: list[AdmissionGate],
        bookkeeping: SyncBookkeeping,
        drafter: Drafter,
    ) -> None:
        config = state.config
        self.state = state
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
        self.num_admitted = 0
        self.max_running = min(config.max_active or config.max_num_seqs, config.max_num_seqs)

    def schedule(self) -> SchedulerOutput:
        """Plan one step. What is planned counts as computed from here on."""
        state = self.state
        budget = 0 if state.pause == 2 else self.token_budget
        output = SchedulerOutput(budget, state.config.max_num_batched_tokens, self.drafter.drafting_slots)
        state.interval.begin_step(state.running)
        state.kv_cache.begin_step()
        cohort = state.cohort
        if cohort is None or not cohort.schedule(output):
            self._schedule_running(output)
        if not output.preempted and state.pause != 2:
            self._admit_waiting(output)
        output.total_num_scheduled_tokens = budget - output.token_budget
        self.bookkeeping.note_scheduled(output)
        if cohort is not None:
            cohort.note_scheduled(output)
        state.note_step(output)
        return output

    # --- phase 1: running requests ----------------------------------------------------------------------

    def _schedule_running(self, output: SchedulerOutput) -> None:
        """Walk the running list; after a preemption the walk goes on from where it stands then."""
        index = 0
        while index < len(self.state.running) and output.num_tokens_left > 0:
            index = self._walk_running(index, output)

    def _walk_running(self, index: int, output: SchedulerOutput) -> int:
        """Schedule running requests from `index` on, up to the first preemption; returns where to go on."""
        running, held = self.state.running, self.state.interval.is_held
        num_steady, room = 0, output.num_tokens_left
        requests, counts = output.requests, output.num_scheduled_tokens
        befores, samples = output.num_computed_before, output.samples
        for request in running[index:]:
            computed = request.num_computed_tokens
            in_flight = request.num_output_placeholders
            if in_flight and computed + 2 - in_flight >= request.max_total_tokens:
                continue  # the step in flight must end it
            lacking = request.num_tokens + in_flight + request.num_draft_tokens - computed
            if lacking == 1 and computed < request.kv_quiet_until:
                # steady decode: `output.add(request, 1)` spelled out, for this is where most requests go
                request.num_computed_tokens = computed + 1
                requests.append(request)
                counts.append(1)
                befores.append(computed)
                samples.append(True)
                num_steady += 1
                if num_steady < room:
                    continue
                break
            if held and request.is_prefill_chunk:
                continue
            output.spend(num_steady)
            num_steady, room = 0, output.num_tokens_left
            num_tokens = self._tokens_this_step(request, lacking, output)
            if num_tokens <= 0:
                continue
            preempting = not self._allocate_running(request, num_tokens)
            if preempting:
                index, fits = self._make_room(request, num_tokens, running.index(request) + 1, output)
                if not fits:
                    return index
            self._schedule_one(request, num_tokens, output)
            if preempting:
                return index
            room = output.num_tokens_left
            if room <= 0:
                break
        output.spend(num_steady)
        return len(running)

    def _schedule_one(self, request: Request, num_tokens: int, output: SchedulerOutput) -> None:
        if request.num_draft_tokens:
            use_drafts(request, num_tokens, output)
        if request.is_prefill_chunk:
            output.has_prefill_chunk = True
            self.state.interval.note_prefill()
        output.add(request, num_tokens)

    def walk_one(self, request: Request, output: SchedulerOutput) -> bool:
        """Give one running request its tokens of this step; False if blocks are lacking. Preempts nobody."""
        computed, in_flight = request.num_computed_tokens, request.num_output_placeholders
        if in_flight and computed + 2 - in_flight >= request.max_total_tokens:
            return True  # the step in flight must end it
        lacking = request.num_tokens + in_flight + request.num_draft_tokens - computed
        num_tokens = self._tokens_this_step(request, lacking, output)
        if num_tokens > 0:
            if not self._allocate_running(request, num_tokens):
                return False
            self._schedule_one(request, num_tokens, output)
        return True

    def _tokens_this_step(self, request: Request, lacking: int, output: SchedulerOutput) -> int:
        """The part of the lacking tokens that this step's limits allow."""
        longest = self.state.config.max_model_len - 1 - request.num_computed_tokens
        num_tokens = min(self._capped(lacking), output.num_tokens_left)
        num_tokens = min(num_tokens, longest)
        computed = request.num_computed_tokens
        num_tokens = self.state.kv_cache.cut_at_state_boundary(request, computed, num_tokens)
        return self._feed_drafter(request, computed, num_tokens)

    def _capped(self, num_tokens: int) -> int:
        """A long prefill gets no more than the threshold."""
        config, state = self.state.config, self.state
        threshold = config.long_prefill_token_threshold
        if config.long_prefill_adaptive:
            num_requests = len(state.running) + state.waiting.size
            threshold = max(threshold, config.max_num_batched_tokens // max(num_requests, 1))
        if not 0 < threshold < num_tokens:
            return num_tokens
        if state.rules.lone_requests_ignore_the_threshold and len(state.running) + state.waiting.size <= 1:
            return num_tokens
        return threshold

    def _feed_drafter(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """A prefill leaves no fewer tokens for its last chunk than the drafter reads ahead."""
        left = request.num_tokens - num_computed_tokens - num_tokens
        if 0 < left < self.drafter.reads_ahead:
            return max(num_tokens - (self.drafter.reads_ahead - left), 0)
        return num_tokens

    def _allocate_running(self, request: Request, num_tokens: int) -> bool:
        return self.state.kv_cache.grow(request, num_tokens, self.drafter.lookahead_slots)

    def _make_room(
        self, request: Request, num_tokens: int, index: int, output: SchedulerOutput
    ) -> tuple[int, bool]:
        """Preempt until the slots fit. Returns where the walk goes on and whether the request got them.

        A victim that was already scheduled in this step is taken out of it, and the walk steps back for it.
        In early releases one that stands before the walk but was passed over does not move it, so then one
        request is left out. A request that was its own victim ends the walk, under FCFS in all releases.
        """
        state, rules = self.state, self.state.rules
        the_end = len(state.running)
        while True:
            position = self._choose_victim(request)
            victim = state.running[position]
            if state.connector and rules.defer_frees_in_flight and victim.num_tokens_in_flight > 0:
                return the_end, False
            del state.running[position]
            if output.take_out(victim) or (rules.victims_move_the_walk and position < index):
                index -= 1
            state.preempt(victim)
            output.note_preempted(victim)
            if victim is request:
                goes_on = rules.self_victims_do_not_end_the_phase and not self.tail_is_victim
                return (index if goes_on else the_end), False
            if self._allocate_running(request, num_tokens):
                return index, True

    def _choose_victim(self, needy: Request) -> int:
        """Ask the policy; `ValueError` if it names nobody."""
        index = self.victim_policy.choose(self.running_view, VictimView(needy, self.state.kv_cache.pool))
        if not 0 <= index < len(self.state.running):
            name = type(self.victim_policy).__name__
            raise ValueError(f"{name} chose victim {index} of {len(self.state.running)} running requests")
        return index

    # --- phase 2: waiting requests ----------------------------------------------------------------------

    def _admit_waiting(self, output: SchedulerOutput) -> None:
        state, waiting = self.state, self.state.waiting
        while output.num_tokens_left > 0 and not self.is_full():
            request = waiting.head(only_holders=state.pause == 1)
            if request is None:
                break
            found = None if self._is_held_back(request, output) else self._find_computed(request)
            if found is None:
                self._set_aside(request)
                continue
            hits, external = found
            computed = request.num_computed_tokens + hits.num_tokens + external.num_tokens
            num_tokens = 0 if external.asynchronous else self._tokens_admitted(request, computed, output)
            if num_tokens is None:
                output.turned_away = request, False
                break
            if num_tokens == 0 and not external.asynchronous:
                self._set_aside(request)
                continue
            if not self._allocate(request, num_tokens, hits, external):
                output.turned_away = request, True
                break
            waiting.take_head()
            if external.asynchronous:
                self._start_load(request, computed)
            else:
                self._admit(request, num_tokens, computed, output)
        waiting.put_back()
        state.interval.end_pass(waiting.size)

    def _is_held_back(self, request: Request, output: SchedulerOutput) -> bool:
        """Whether a gate passes the request over; none has a reason if it is an ordinary one."""
        status = request.status
        ordinary = status is WAITING or status is PREEMPTED
        if ordinary and not request.num_stale_tokens and request.lora_name is None:
            return False
        return any(gate.holds_back(request, output) for gate in self.gates)

    def is_full(self) -> bool:
        """Whether no more requests may run."""
        num_running = len(self.state.running)
        if self.state.num_sessions_idle and self.state.rules.idle_sessions_take_a_place:
            num_running += self.state.num_sessions_idle
        return num_running >= self.max_running

    def _set_aside(self, request: Request) -> None:
        self.state.waiting.set_aside(self.state.waiting.take_head())
        self.state.interval.defer(request)

    def _find_computed(self, request: Request) -> tuple[PrefixHits, ExternalMatch] | None:
        """What need not be computed: local hits and the connector's match. None: the connector does not know
        yet.
        """
        state, kv_cache = self.state, self.state.kv_cache
        external = _NO_MATCH
        if request.num_computed_tokens:
            return kv_cache.no_hits(), external
        if not kv_cache.caching or request.skip_reading_prefix_cache:
            hits = kv_cache.no_hits()
        else:
            if self.drafter.hash_lookahead and request.resumable:
                kv_cache.hasher.rebuild(request)
            hits = kv_cache.find_hits(request)
            if not state.rules.count_lookups_when_admitted:
                state.prefix_cache_stats.count(request, request.num_tokens, hits.num_tokens)
        if state.connector is not None:
            match = state.connector.match(request, hits.num_tokens)
            if request.skip_reading_prefix_cache and state.rules.skipping_readers_still_ask_the_connector:
                match = _NO_MATCH
            if match is None:
                return None
            external = match
            request.num_external_tokens = external.num_tokens
        return hits, external

    def _tokens_admitted(self, request: Request, computed: int, output: SchedulerOutput) -> int | None:
        """Tokens for a request's first step; None if it and all behind it must wait."""
        config = self.state.config
        num_tokens = request.num_tokens - computed
        if num_tokens <= 0:  # vLLM stops with an assertion here: a session restarted with drafts in flight
            raise InvariantError(
                f"request {request.request_id} is to be admitted with {computed} computed of "
                f"{request.num_tokens} tokens"
            )
        if self.state.interval.is_held and num_tokens > 1:
            return None
        padded = num_tokens + self._padding(num_tokens, computed, output)
        if padded > num_tokens and padded > output.token_budget:
            return None
        num_tokens = self._capped(padded)
        if not config.enable_chunked_prefill and num_tokens > output.token_budget:
            return None
        num_tokens = min(num_tokens, output.num_tokens_left)
        num_tokens = self.state.kv_cache.cut_at_state_boundary(request, computed, num_tokens)
        if num_tokens == 0 and not self.state.rules.unfit_chunks_are_passed_over:
            return None
        return self._feed_drafter(request, computed, num_tokens)

    def _padding(self, num_tokens: int, computed: int, output: SchedulerOutput) -> int:
        """Dummy drafts that make an admission of one token look like the running decodes."""
        drafter = self.drafter
        if not (drafter.num_drafts and self.state.rules.pad_new_decodes) or drafter.drafts_by_batch:
            return 0
        if num_tokens != 1 or output.has_prefill_chunk or not (output.num_running_scheduled or computed):
            return 0
        fits = computed + drafter.num_drafts + 2 <= self.state.config.max_model_len
        return drafter.num_drafts if fits else 0

    def _allocate(self, request: Request, num_tokens: int, hits: PrefixHits, external: ExternalMatch) -> bool:
        state, drafter = self.state, self.drafter
        looked_up = request.num_computed_tokens == 0
        keep_free = self.room.keep_free(request, hits, loading=external.asynchronous)
        if keep_free is None:
            return False
        lookahead = drafter.lookahead_slots
        if lookahead and (external.asynchronous if state.rules.lookahead_at_admission else looked_up):
            lookahead = 0
        allocated = state.kv_cache.allocate(
            request,
            num_tokens,
            num_lookahead_tokens=lookahead,
            hits=hits,
            num_external_tokens=external.num_tokens,
            enter_cache=not external.asynchronous,
            keep_free=keep_free,
        )
        if allocated and looked_up:
            self._count_lookup(request, hits, external)
        return allocated

    def _count_lookup(self, request: Request, hits: PrefixHits, external: ExternalMatch) -> None:
        """A lookup led to an admission or to a load."""
        state = self.state
        stats = state.prefix_cache_stats
        stats.saved_tokens += hits.num_tokens
        if request.num_preemptions:
            accounts = state.preemption_accounts
            accounts.came_back(request, accounts.found_again(request, hits.blocks), external.num_tokens)
        else:
            request.num_local_hit_tokens = hits.num_tokens
            request.num_loaded_tokens = external.num_tokens
        was_read = state.kv_cache.caching and not request.skip_reading_prefix_cache
        if was_read and state.rules.count_lookups_when_admitted:
            stats.count(request, request.num_tokens, hits.num_tokens)
        if state.connector is not None:
            state.connector.note_allocated(request, external.num_tokens)
            queried = request.num_tokens - hits.num_tokens
            state.connector_prefix_cache_stats.count(request, queried, external.num_tokens)

    def _start_load(self, request: Request, computed: int) -> None:
        """The request waits for its KV, holding its blocks."""
        state = self.state
        request.move_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        if state.rules.loads_count_exactly:
            request.num_computed_tokens = computed
        state.waiting.set_aside(request)
        state.interval.defer(request)
        state.prefills_under_way[request.request_id] = request

    def _admit(self, request: Request, num_tokens: int, computed: int, output: SchedulerOutput) -> None:
        state = self.state
        resumed = request.status is PREEMPTED
        output.note_admitted(request, resumed=resumed)
        request.move_to(RUNNING)
        state.running.append(request)
        self.num_admitted += 1
        request.running_order = self.num_admitted
        state.interval.undefer(request)
        if computed < request.num_tokens - 1:
            state.interval.note_prefill()
        request.num_computed_tokens = computed
        if request.num_cached_tokens == -1:
            request.num_cached_tokens = computed
        dummies = num_tokens - (request.num_tokens - computed)
        if dummies > 0:
            output.scheduled_spec_decode_tokens[request.request_id] = dummies
        output.add(request, num_tokens)
        if state.connector is not None and request.is_prefill_chunk:
            state.prefills_under_way[request.request_id] = request
