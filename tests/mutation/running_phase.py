"""Rules of the first phase: who runs on, who is preempted, what a victim loses."""

from __future__ import annotations

from tests.mutation.mutant import OUTPUT, QUEUES, SCHEDULER, SPECULATION, STATE, TESTS, VICTIM, Mutant, one

RUNNING_PHASE: dict[str, Mutant] = {
    "in_flight_skip_too_late": one(
        "a request whose step in flight must end it is passed over",
        SCHEDULER,
        "computed + 2 - in_flight >= request.max_total_tokens",
        "computed + 1 - in_flight >= request.max_total_tokens",
        noticed_by="0.16.0/async_spec-3",
    ),
    "no_in_flight_skip": one(
        "a request whose step in flight must end it is passed over",
        SCHEDULER,
        "if in_flight and computed + 2",
        "if False and computed + 2",
        noticed_by="0.16.0/async_spec-3",
    ),
    "threshold_not_for_running": one(
        "the long-prefill threshold caps running requests",
        SCHEDULER,
        "num_tokens = self.capped(request.num_tokens + in_flight",
        "num_tokens = (request.num_tokens + in_flight",
        noticed_by="0.16.0/long_prefill-2",
    ),
    "one_token_beyond_model_length": one(
        "no token is computed at the last position of the model's length",
        SCHEDULER,
        "self.state.config.max_model_len - 1 - computed)",
        "self.state.config.max_model_len - computed)",
        noticed_by="0.16.0/model_len-1",
    ),
    "budget_not_given_back": Mutant(
        "a victim's tokens go back to the step's budget",
        (
            (OUTPUT, "self.token_budget += num_tokens", "self.token_budget += 0"),
            (OUTPUT, "self.input_budget += num_tokens + self.num_drafting_slots", "self.input_budget += 0"),
        ),
        noticed_by="0.16.0/priority_budget-4",
    ),
    "victims_drafts_stay_in_the_step": one(
        "a victim's drafts leave the step with it",
        OUTPUT,
        "self.scheduled_spec_decode_tokens.pop(request.request_id, None)",
        "pass",
        noticed_by=TESTS + "test_the_drafts_of_a_victim_leave_the_step_with_it",
    ),
    "walk_does_not_step_back": one(
        "the walk steps back for a victim already scheduled",
        SCHEDULER,
        "                index -= 1\n",
        "                index -= 0\n",
        noticed_by="0.16.0/priority_preempt-8",
    ),
    "self_victim_does_not_end_the_phase": one(
        "a request that preempts itself ends the running phase",
        SCHEDULER,
        "return index if goes_on else len(running)",
        "return index",
        noticed_by="0.16.0/priority_preempt-8",
    ),
    "fcfs_victim_is_the_first": one(
        "under FCFS the last running request is the victim",
        VICTIM,
        "return len(running) - 1",
        "return 0",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "priority_victim_tie_is_the_last": one(
        "of equal priority and arrival the earliest in the list is the victim",
        VICTIM,
        "if key > worst_key:",
        "if key >= worst_key:",
        noticed_by="0.16.0/priority_preempt-3",
    ),
    "priority_victim_ignores_arrival": one(
        "of equal priority the latest to arrive is the victim",
        VICTIM,
        "(view.priority, view.arrival_time)",
        "(view.priority, 0.0)",
        noticed_by="0.16.0/connector_async-3",
    ),
    "admissions_after_a_preemption": one(
        "nobody is admitted in a step that preempted",
        SCHEDULER,
        "if not output.preempted and state.pause",
        "if state.pause",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "preempted_to_the_tail": one(
        "a preempted request goes to the front of the queue",
        QUEUES,
        "self._front.append(request)",
        "self._back.append(request)",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "preempted_keeps_drafts": one(
        "a preempted request loses its drafts",
        STATE,
        "        request.num_draft_tokens = 0\n",
        "",
        noticed_by="0.16.0/async_spec-4",
    ),
    "preempted_loses_placeholders": one(
        "tokens in flight at a preemption still count",
        STATE,
        "        request.num_draft_tokens = 0\n",
        "        request.num_draft_tokens = request.num_output_placeholders = 0\n",
        noticed_by="0.16.0/async_spec-0",
    ),
    "preempted_loses_hashes": one(
        "block hashes survive a preemption",
        STATE,
        "        request.num_draft_tokens = 0\n",
        "        request.num_draft_tokens = 0\n        request.block_keys.truncate(1)\n",
        noticed_by="0.16.0/spec_eagle-4",
    ),
    "drafts_kept_when_not_used": one(
        "drafts are good for one step, used or not",
        SPECULATION,
        "    request.num_draft_tokens = 0\n\n\ndef attach",
        "    request.num_draft_tokens -= max(num_drafts, 0)\n\n\ndef attach",
        equivalent="a request that has drafts samples in the step that takes them up, and whoever samples "
        "gets a new number of drafts: the old one is never read again",
    ),
    "no_lookahead_slots": one(
        "a drafter's lookahead slots are allocated",
        SCHEDULER,
        "self.state.kv_cache.grow(request, num_tokens, self.drafter.lookahead_slots)",
        "self.state.kv_cache.grow(request, num_tokens, 0)",
        noticed_by="0.16.0/spec_eagle-4",
    ),
}
