"""The schedule page: how one step is put together.

There is no prefill phase and no decode phase: every request has known tokens and computed tokens, and each
step gives out a budget of tokens that lets the second count catch up with the first. Running requests come
first, in order, and preempt when blocks run out. Then, only if nobody was preempted, waiting requests are
admitted from the head of the queue. Chunked prefill, prefix hits, speculation and scheduling ahead all follow
from this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from scheduler.async_scheduling import SyncBookkeeping
from scheduler.connector import ExternalMatch
from scheduler.errors import InvariantError
from scheduler.gates import AdmissionGate
from scheduler.kv_cache.coordinator import PrefixHits
from scheduler.output import SchedulerOutput
from scheduler.policies import RunningView, VictimPolicy, VictimView
from scheduler.request import Request
from scheduler.speculation import num_lookahead_tokens, use_drafts
from scheduler.state import EngineState
from scheduler.status import RequestStatus

_NO_MATCH = ExternalMatch(0, False)


class Scheduler:
    """Plans steps on an engine's state."""

    def __init__(
        self,
        state: EngineState,
        victim_policy: VictimPolicy,
        gates: Sequence[AdmissionGate],
        bookkeeping: SyncBookkeeping,
    ) -> None:
        self.state = state
        self.victim_policy = victim_policy
        self.running_view = RunningView(state.running, state.kv_cache.pool)
        self.gates = gates
        self.bookkeeping = bookkeeping
        self.cut = state.kv_cache.cut_at_state_boundary
        self.num_lookahead_tokens = num_lookahead_tokens(state.config.speculative)
        self.num_admitted = 0

    def schedule(self) -> SchedulerOutput:
        """Plan one step. What is planned counts as computed from here on."""
        budget = self.state.config.max_num_batched_tokens
        output = SchedulerOutput(budget)
        cohort = self.state.cohort
        if cohort is None or not cohort.schedule(output):
            self._schedule_running(output)
        if not output.preempted:
            self._admit_waiting(output)
        output.total_num_scheduled_tokens = budget - output.token_budget
        self.bookkeeping.note_scheduled(output)
        if cohort is not None:
            cohort.note_scheduled(output)
        output.finished_req_ids, self.state.finished_req_ids = self.state.finished_req_ids, set()
        return output

    # --- phase 1: running requests ----------------------------------------------------------------------

    def _schedule_running(self, output: SchedulerOutput) -> None:
        """Walk the running list; after a preemption the walk goes on from where it stands then."""
        index = 0
        while index < len(self.state.running) and output.token_budget > 0:
            index = self._walk_running(index, output)

    def _walk_running(self, index: int, output: SchedulerOutput) -> int:
        """Schedule running requests from `index` on, up to the first preemption; returns where to go on."""
        running = self.state.running
        budget = output.token_budget
        note_request, note_count = output.requests.append, output.num_scheduled_tokens.append
        note_computed, note_samples = output.num_computed_before.append, output.samples.append
        for request in islice(running, index, None):
            computed = request.num_computed_tokens
            in_flight = request.num_output_placeholders
            if in_flight and computed + 2 - in_flight >= request.max_total_tokens:
                continue  # the step in flight must end it
            lacking = request.num_tokens + in_flight + request.num_draft_tokens - computed
            if lacking == 1 and computed < request.kv_quiet_until:
                # steady decode: `output.add(request, 1)` spelled out, for this is where most requests go
                request.num_computed_tokens = computed + 1
                note_request(request)
                note_count(1)
                note_computed(computed)
                note_samples(True)
                budget -= 1
                if budget > 0:
                    continue
                break
            output.token_budget = budget
            num_tokens = self._tokens_this_step(request, lacking, output)
            if num_tokens <= 0:
                continue
            preempting = not self._allocate_running(request, num_tokens)
            if preempting:
                index, fits = self._make_room(request, num_tokens, running.index(request) + 1, output)
                if not fits:
                    return len(running)
            if request.num_draft_tokens:
                use_drafts(request, num_tokens, output)
            output.add(request, num_tokens)
            if preempting:
                return index
            budget = output.token_budget
            if budget <= 0:
                break
        output.token_budget = budget
        return len(running)

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
            output.add(request, num_tokens)
        return True

    def _allocate_running(self, request: Request, num_tokens: int) -> bool:
        return self.state.kv_cache.grow(request, num_tokens, self.num_lookahead_tokens)

    def _tokens_this_step(self, request: Request, lacking: int, output: SchedulerOutput) -> int:
        """The part of the lacking tokens that this step's limits allow."""
        config = self.state.config
        if 0 < config.long_prefill_token_threshold < lacking:
            lacking = config.long_prefill_token_threshold
        lacking = min(lacking, output.token_budget, config.max_model_len - 1 - request.num_computed_tokens)
        return self.cut(request, request.num_computed_tokens, lacking)

    def _make_room(
        self, request: Request, num_tokens: int, index: int, output: SchedulerOutput
    ) -> tuple[int, bool]:
        """Preempt until the slots fit. Returns the walk's index and whether the request got them.

        A victim that was already scheduled in this step is taken out of it, and the walk steps back for it.
        One that stands before the walk but was passed over does not move it, so then one request is left out.
        """
        state = self.state
        while True:
            victim = state.running.pop(self._choose_victim(request))
            if output.take_out(victim):
                index -= 1
            state.preempt(victim)
            output.preempted.append(victim)
            if victim is request:
                return index, False
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
        set_aside: list[Request] = []
        while waiting and output.token_budget > 0 and len(state.running) < state.config.max_num_seqs:
            request = waiting.peek()
            if any(gate.holds_back(request, output) for gate in self.gates):
                set_aside.append(waiting.pop())
                continue
            found = self._find_computed(request)
            if found is None:
                set_aside.append(waiting.pop())
                continue
            hits, external = found
            computed = request.num_computed_tokens + hits.num_tokens + external.num_tokens
            num_tokens = 0 if external.asynchronous else self._tokens_admitted(request, computed, output)
            if num_tokens is None or not self._allocate(request, num_tokens, hits, external):
                break
            waiting.pop()
            if external.asynchronous:
                request.move_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
                set_aside.append(request)
            else:
                self._admit(request, num_tokens, computed, output)
        if set_aside:
            waiting.put_back(set_aside)

    def _find_computed(self, request: Request) -> tuple[PrefixHits, ExternalMatch] | None:
        """What need not be computed: local hits and the connector's match. None: the connector does not know
        yet.
        """
        state = self.state
        hits, external = state.kv_cache.no_hits(), _NO_MATCH
        if request.num_computed_tokens:
            return hits, external
        if state.kv_cache.caching and not request.skip_reading_prefix_cache:
            hits = state.kv_cache.find_hits(request)
            state.prefix_cache_stats.count(request, request.num_tokens, hits.num_tokens)
        if state.connector is not None:
            match = state.connector.match(request, hits.num_tokens)
            if match is None:
                return None
            external = match
            request.num_external_tokens = external.num_tokens
        return hits, external

    def _tokens_admitted(self, request: Request, computed: int, output: SchedulerOutput) -> int | None:
        """Tokens for a request's first step; None if it must not be cut and does not fit."""
        config = self.state.config
        num_tokens = request.num_tokens - computed
        if num_tokens <= 0:  # vLLM stops with an assertion here: a session restarted with drafts in flight
            raise InvariantError(
                f"request {request.request_id} is to be admitted with {computed} computed of "
                f"{request.num_tokens} tokens"
            )
        if 0 < config.long_prefill_token_threshold < num_tokens:
            num_tokens = config.long_prefill_token_threshold
        if not config.enable_chunked_prefill and num_tokens > output.token_budget:
            return None
        return self.cut(request, computed, min(num_tokens, output.token_budget)) or None

    def _allocate(self, request: Request, num_tokens: int, hits: PrefixHits, external: ExternalMatch) -> bool:
        state = self.state
        looked_up = request.num_computed_tokens == 0
        allocated = state.kv_cache.allocate(
            request,
            num_tokens,
            num_lookahead_tokens=0 if looked_up else self.num_lookahead_tokens,
            hits=hits,
            num_external_tokens=external.num_tokens,
            enter_cache=not external.asynchronous,
        )
        if allocated and looked_up:
            state.prefix_cache_stats.saved_tokens += hits.num_tokens
            if request.num_preemptions:
                state.preemption_accounts.came_back(request, hits.blocks, external.num_tokens)
            if state.connector is not None:
                state.connector.note_allocated(request, external.num_tokens)
                queried = request.num_tokens - hits.num_tokens
                state.connector_prefix_cache_stats.count(request, queried, external.num_tokens)
        return allocated

    def _admit(self, request: Request, num_tokens: int, computed: int, output: SchedulerOutput) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        (output.resumed if resumed else output.new).append(request)
        request.move_to(RequestStatus.RUNNING)
        self.state.running.append(request)
        self.num_admitted += 1
        request.running_order = self.num_admitted
        request.num_computed_tokens = computed
        if request.num_cached_tokens == -1:
            request.num_cached_tokens = computed
        output.add(request, num_tokens)
