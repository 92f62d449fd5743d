"""Rules of the second phase: who is admitted, who is passed over, who blocks the others."""

from __future__ import annotations

from tests.mutation.mutant import GRAMMAR, LORA, ORDER, QUEUES, SCHEDULER, STATS, TESTS, Mutant, one

WAITING_PHASE: dict[str, Mutant] = {
    "head_that_does_not_fit_is_skipped": one(
        "a head that cannot be allocated blocks everyone behind it",
        SCHEDULER,
        "if verdict is STOP or not self._allocate(candidate):\n",
        "if verdict is not STOP and not self._allocate(candidate):\n"
        "                self._set_aside()\n                continue\n"
        "            if verdict is STOP:\n",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "uncut_prompt_is_skipped": one(
        "without chunked prefill a prompt that exceeds the budget blocks everyone behind it",
        SCHEDULER,
        "enable_chunked_prefill and num_tokens > output.token_budget:\n            return STOP",
        "enable_chunked_prefill and num_tokens > output.token_budget:\n            return SET_ASIDE",
        noticed_by="0.16.0/no_chunked_tight-2",
    ),
    "prompts_are_cut_although_they_must_not": one(
        "without chunked prefill prompts are not cut",
        SCHEDULER,
        "if not config.enable_chunked_prefill and",
        "if False and",
        noticed_by="0.16.0/no_chunked_tight-2",
    ),
    "one_sequence_too_many": one(
        "the running list has at most max_num_seqs requests",
        SCHEDULER,
        "return num_running >= self.max_num_running",
        "return num_running > self.max_num_running",
        noticed_by="0.16.0/connector_fail-2",
    ),
    "threshold_not_for_waiting": one(
        "the long-prefill threshold caps admissions",
        SCHEDULER,
        "num_tokens = self.capped(num_tokens)\n        if not config",
        "if not config",
        noticed_by="0.16.0/long_prefill-2",
    ),
    "lookups_counted_when_admitted_only": one(
        "lookups count at every attempt",
        SCHEDULER,
        "if not self.rules.count_lookups_when_admitted:",
        "if request.num_cached_tokens == -2:",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "lookups_of_the_preempted_not_kept_apart": one(
        "lookups of requests once preempted are counted apart",
        STATS,
        "if request.num_preemptions:",
        "if False:",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "lookahead_for_fresh_admissions": one(
        "a fresh or resumed request gets no lookahead slots",
        SCHEDULER,
        "if self.rules.lookahead_at_admission else looked_up):",
        "if self.rules.lookahead_at_admission else False):",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "no_lookahead_for_continued_ones": one(
        "a request that has KV already is admitted with lookahead slots",
        SCHEDULER,
        "if self.rules.lookahead_at_admission else looked_up):",
        "if self.rules.lookahead_at_admission else True):",
        noticed_by="0.16.0/combined-35",
    ),
    "set_aside_in_reverse": one(
        "requests set aside return in their old order",
        QUEUES,
        "self._front.extend(reversed(set_aside))",
        "self._front.extend(set_aside)",
        noticed_by="0.16.0/connector_fail-2",
    ),
    "set_aside_to_the_tail": one(
        "requests set aside return to the front",
        QUEUES,
        "self._front.extend(reversed(set_aside))",
        "self._back.extend(set_aside)",
        noticed_by="0.16.0/connector_fail-2",
    ),
    "no_second_heap": one(
        "under priority requests set aside go through a second heap",
        QUEUES,
        "        for request in second:\n            self.add(request)",
        "        for request in set_aside:\n            self.add(request)",
        noticed_by=TESTS + "test_requests_set_aside_under_priority_return_through_a_heap_of_their_own",
    ),
    "removal_without_heapify": one(
        "removing a waiting request heapifies the queue again",
        QUEUES,
        "        heapq.heapify(self._heap)\n",
        "",
        noticed_by="0.16.0/stuck_head-1",
    ),
    "ids_compared_as_numbers": one(
        "of equal priority and arrival the id compared as text decides",
        ORDER,
        "(request.priority, request.arrival_time, str(request.request_id))",
        "(request.priority, request.arrival_time, f'{request.request_id:09}')",
        noticed_by="0.16.0/priority_preempt-3",
    ),
    "larger_priority_first": one(
        "smaller priority goes first",
        ORDER,
        "return (request.priority, request.arrival_time, str",
        "return (-request.priority, request.arrival_time, str",
        noticed_by="0.16.0/connector_async-3",
    ),
    "cached_count_of_the_last_admission": one(
        "the cached-token count is that of the first admission",
        SCHEDULER,
        "if request.num_cached_tokens == -1:",
        "if True:",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "resumed_reported_as_new": one(
        "a resumed request is told apart from a new one",
        SCHEDULER,
        "request, resumed=request.status is PREEMPTED",
        "request, resumed=False",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "one_adapter_too_many": one(
        "a step uses at most max_loras adapters",
        LORA,
        "len(self._adapters) == self._max_loras",
        "len(self._adapters) > self._max_loras",
        noticed_by="0.16.0/lora-3",
    ),
    "idle_adapters_count": one(
        "only adapters of requests scheduled in the step take slots",
        LORA,
        "if self.state.rules.all_running_adapters_count:",
        "if True:",
        noticed_by="0.16.0/combined-31",
    ),
    "own_adapter_is_no_exception": one(
        "a request whose adapter is in the step already may join",
        LORA,
        " and name not in self._adapters",
        "",
        noticed_by="0.16.0/lora-3",
    ),
    "grammar_gate_open": one(
        "a request waits for its grammar",
        GRAMMAR,
        "if request.request_id not in self.ready_grammars:\n                return True",
        "if request.request_id not in self.ready_grammars:\n                pass",
        noticed_by="0.16.0/fsm_spec-1",
    ),
}
