"""Rules of the second phase: who is admitted, who is passed over, who blocks the others."""

from __future__ import annotations

from tests.mutation.mutant import TESTS, Mutant, one

WAITING_PHASE: dict[str, Mutant] = {
    "head_that_does_not_fit_is_skipped": one(
        "a head that cannot be allocated blocks everyone behind it",
        "if __stop or not self._allocate(__head):\n    __output.note_turned_away(__request, for_blocks=__b)\n"
        "    break",
        "if __stop:\n    __output.note_turned_away(__request, for_blocks=__b)\n    break\n"
        "if not self._allocate(__head):\n    self._set_aside()\n    continue",
        "0.16.0/spec_eagle-4",
    ),
    "uncut_prompt_is_skipped": one(
        "without chunked prefill a prompt that exceeds the budget blocks everyone behind it",
        "if not __config.enable_chunked_prefill and __tokens > __budget:\n    return STOP",
        "if not __config.enable_chunked_prefill and __tokens > __budget:\n    return SET_ASIDE",
        "0.16.0/no_chunked_tight-2",
    ),
    "prompts_are_cut_although_they_must_not": one(
        "without chunked prefill prompts are not cut",
        "if not __config.enable_chunked_prefill and __tokens > __budget:\n    return STOP",
        "pass",
        "0.16.0/no_chunked_tight-2",
    ),
    "uncut_prompts_ignore_the_drafter": one(
        "vLLM 0.33.0: an uncut prompt needs room for the drafter's slots too",
        "not __config.enable_chunked_prefill and __tokens > __output.num_tokens_left",
        "not __config.enable_chunked_prefill and __tokens > __output.token_budget",
        "0.33.0-found/nochunk_slots_eagle_1_99",
    ),
    "one_sequence_too_many": one(
        "the running list has at most max_num_seqs requests",
        "__running >= self.max_num_running",
        "__running > self.max_num_running",
        "0.16.0/connector_fail-2",
    ),
    "threshold_not_for_waiting": one(
        "the long-prefill threshold caps admissions",
        "__tokens = self.capped(__tokens)",
        "pass",
        "0.16.0/long_prefill-2",
    ),
    "lookups_counted_when_admitted_only": one(
        "lookups count at every attempt",
        "self.rules.count_lookups_when_admitted",
        "True",
        "0.16.0/spec_eagle-4",
        places=2,
    ),
    "lookups_of_the_preempted_not_kept_apart": one(
        "lookups of requests once preempted are counted apart",
        "__request.num_preemptions",
        "0",
        "0.16.0/spec_eagle-4",
        "PrefixCacheStats.count",
    ),
    "lookahead_for_fresh_admissions": one(
        "a fresh or resumed request gets no lookahead slots",
        "__loads if self.rules.lookahead_at_admission else __looked_up",
        "__loads if self.rules.lookahead_at_admission else False",
        "0.16.0/spec_eagle-4",
    ),
    "no_lookahead_for_continued_ones": one(
        "a request that has KV already is admitted with lookahead slots",
        "__loads if self.rules.lookahead_at_admission else __looked_up",
        "__loads if self.rules.lookahead_at_admission else True",
        "0.16.0/combined-35",
    ),
    "set_aside_in_reverse": one(
        "requests set aside return in their old order",
        "self._front.extend(reversed(__requests))",
        "self._front.extend(__requests)",
        "0.16.0/connector_fail-2",
    ),
    "set_aside_to_the_tail": one(
        "requests set aside return to the front",
        "self._front.extend(reversed(__requests))",
        "self._back.extend(__requests)",
        "0.16.0/connector_fail-2",
    ),
    "no_second_heap": one(
        "under priority requests set aside go through a second heap",
        "for __request in second:\n    self.add(__request)",
        "for __request in set_aside:\n    self.add(__request)",
        TESTS + "test_requests_set_aside_under_priority_return_through_a_heap_of_their_own",
    ),
    "removal_without_heapify": one(
        "removing a waiting request heapifies the queue again",
        "heapq.heapify(__heap)",
        "None",
        "0.16.0/stuck_head-1",
    ),
    "ids_compared_as_numbers": one(
        "of equal priority and arrival the id compared as text decides",
        "(__request.priority, __request.arrival_time, str(__request.request_id))",
        "(__request.priority, __request.arrival_time, __request.request_id)",
        "0.16.0/priority_preempt-3",
    ),
    "larger_priority_first": one(
        "smaller priority goes first",
        "(__request.priority, __request.arrival_time, str(__request.request_id))",
        "(-__request.priority, __request.arrival_time, str(__request.request_id))",
        "0.16.0/connector_async-3",
    ),
    "cached_count_of_the_last_admission": one(
        "the cached-token count is that of the first admission",
        "if __request.num_cached_tokens == -1:\n    __request.num_cached_tokens = __computed",
        "__request.num_cached_tokens = __computed",
        "0.16.0/spec_eagle-4",
    ),
    "resumed_reported_as_new": one(
        "a resumed request is told apart from a new one",
        "__output.note_admitted(__request, resumed=__resumed)",
        "__output.note_admitted(__request, resumed=False)",
        "0.16.0/spec_eagle-4",
    ),
    "one_adapter_too_many": one(
        "a step uses at most max_loras adapters",
        "len(self._adapters) == self._max_loras",
        "len(self._adapters) > self._max_loras",
        "0.16.0/lora-3",
    ),
    "idle_adapters_count": one(
        "only adapters of requests scheduled in the step take slots",
        "self.state.rules.all_running_adapters_count",
        "True",
        "0.16.0/combined-31",
    ),
    "own_adapter_is_no_exception": one(
        "a request whose adapter is in the step already may join",
        "__name not in self._adapters",
        "True",
        "0.16.0/lora-3",
    ),
    "grammar_gate_open": one(
        "a request waits for its grammar",
        "__request.request_id not in self.ready_grammars",
        "False",
        "0.16.0/fsm_spec-1",
    ),
}
