"""Rules of the first phase: who runs on, who is preempted, what a victim loses."""

from __future__ import annotations

from tests.mutation.mutant import TESTS, Mutant, one
from tests.mutation.patterns import Edit

RUNNING_PHASE: dict[str, Mutant] = {
    "in_flight_skip_too_late": one(
        "a request whose step in flight must end it is passed over",
        "__computed + 2 - __in_flight >= __request.max_total_tokens",
        "__computed + 1 - __in_flight >= __request.max_total_tokens",
        "0.16.0/async_spec-3",
        places=2,
    ),
    "no_in_flight_skip": one(
        "a request whose step in flight must end it is passed over",
        "__in_flight > 0 and __computed + 2 - __in_flight >= __request.max_total_tokens",
        "False",
        "0.16.0/async_spec-3",
        places=2,
    ),
    "threshold_not_for_running": one(
        "the long-prefill threshold caps running requests",
        "self.capped(__tokens - __computed)",
        "__tokens - __computed",
        "0.16.0/long_prefill-2",
    ),
    "one_token_beyond_model_length": one(
        "no token is computed at the last position of the model's length",
        "self.state.config.max_model_len - 1 - __computed",
        "self.state.config.max_model_len - __computed",
        "0.16.0/model_len-1",
    ),
    "budget_not_given_back": Mutant(
        "a victim's tokens go back to the step's budget",
        (
            Edit("self.token_budget += __tokens", "pass"),
            Edit("self.input_budget += __tokens + self.num_drafting_slots", "pass"),
        ),
        "0.16.0/priority_budget-4",
    ),
    "victims_drafts_stay_in_the_step": one(
        "a victim's drafts leave the step with it",
        "self.scheduled_spec_decode_tokens.pop(__id, None)",
        "None",
        TESTS + "test_the_drafts_of_a_victim_leave_the_step_with_it",
    ),
    "walk_does_not_step_back": one(
        "the walk steps back for a victim already scheduled",
        "index -= 1",
        "pass",
        "0.16.0/priority_preempt-8",
    ),
    "self_victim_does_not_end_the_phase": one(
        "a request that preempts itself ends the running phase",
        "return __index if goes_on else __end",
        "return __index",
        "0.16.0/priority_preempt-8",
    ),
    "fcfs_victim_is_the_first": one(
        "under FCFS the last running request is the victim",
        "len(running) - 1",
        "0",
        "0.16.0/spec_eagle-4",
    ),
    "priority_victim_tie_is_the_last": one(
        "of equal priority and arrival the earliest in the list is the victim",
        "key > worst_key",
        "key >= worst_key",
        "0.16.0/priority_preempt-3",
    ),
    "priority_victim_ignores_arrival": one(
        "of equal priority the latest to arrive is the victim",
        "(__view.priority, __view.arrival_time)",
        "(__view.priority, 0.0)",
        "0.16.0/connector_async-3",
        places=2,
    ),
    "admissions_after_a_preemption": one(
        "nobody is admitted in a step that preempted",
        "not __output.preempted and __state.pause != 2",
        "__state.pause != 2",
        "0.16.0/spec_eagle-4",
        "Scheduler.schedule",
    ),
    "preempted_to_the_tail": one(
        "a preempted request goes to the front of the queue",
        "self._front.append(__request)",
        "self._back.append(__request)",
        "0.16.0/spec_eagle-4",
    ),
    "preempted_keeps_drafts": one(
        "a preempted request loses its drafts",
        "__request.num_draft_tokens = 0",
        "pass",
        "0.16.0/async_spec-4",
        "EngineState.preempt",
    ),
    "placeholders_below_zero_count": one(
        "a request with fewer than no tokens in flight (drafts thrown away by a reset) is not passed over",
        "__in_flight > 0 and __computed + 2 - __in_flight >= __request.max_total_tokens",
        "__in_flight and __computed + 2 - __in_flight >= __request.max_total_tokens",
        "0.16.0-found/placeholders_below_zero-101",
        places=2,
    ),
    "preempted_loses_placeholders": one(
        "tokens in flight at a preemption still count",
        "__request.num_draft_tokens = 0",
        "__request.num_draft_tokens = __request.num_output_placeholders = 0",
        "0.16.0/async_spec-0",
        "EngineState.preempt",
    ),
    "preempted_loses_hashes": one(
        "block hashes survive a preemption",
        "__request.num_draft_tokens = 0",
        "__request.num_draft_tokens = 0\n__request.block_keys.truncate(1)",
        "0.16.0/spec_eagle-4",
        "EngineState.preempt",
    ),
    "drafts_kept_when_not_used": one(
        "drafts are good for one step, used or not",
        "__request.num_draft_tokens = 0",
        "__request.num_draft_tokens -= max(num_drafts, 0)",
        where="use_drafts",
        equivalent="a request that has drafts samples in the step that takes them up, and whoever samples "
        "gets a new number of drafts: the old one is never read again",
    ),
    "no_lookahead_slots": one(
        "a drafter's lookahead slots are allocated",
        "self.state.kv_cache.grow(__request, __tokens, __slots)",
        "self.state.kv_cache.grow(__request, __tokens, 0)",
        "0.16.0/spec_eagle-4",
    ),
}
