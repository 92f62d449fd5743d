"""Rules of the update: what ends a request, what is rolled back, and how sessions, loads and clients fare."""

from __future__ import annotations

from tests.mutation.mutant import TESTS, Mutant, one

UPDATES: dict[str, Mutant] = {
    "min_tokens_one_more": one(
        "from min_tokens outputs on a token may stop",
        "__outputs < __request.min_tokens",
        "__outputs <= __request.min_tokens",
        "0.16.0/min_tokens-2",
    ),
    "length_before_min_tokens": one(
        "before min_tokens outputs not even a length limit stops",
        "__outputs < __request.min_tokens and not self.ignore_min_tokens",
        "__outputs < min(__request.min_tokens, __request.max_tokens) and not self.ignore_min_tokens",
        TESTS + "test_before_min_tokens_not_even_a_length_limit_ends_a_request",
    ),
    "eos_not_ignored": one("EOS is ignored on request", "not __request.ignore_eos", "True", "0.16.0/stops-1"),
    "stop_token_not_told": one(
        "a stop token is reported",
        "__request.stop_reason = __token",
        "__request.stop_reason = None",
        "0.16.0/min_tokens-2",
        "StopRules.append",
    ),
    "one_output_too_many": one(
        "max_tokens outputs are the most",
        "__outputs >= __request.max_tokens",
        "__outputs > __request.max_tokens",
        "0.16.0/spec_eagle-4",
    ),
    "one_token_over_the_model": one(
        "a text as long as the model's length ends",
        "__position + 1 >= self.max_model_len",
        "__position >= self.max_model_len",
        "0.16.0/model_len-1",
    ),
    "tokens_after_a_stop_kept": one(
        "tokens after a stop are cut",
        "__request.stop_token_ids and token in __request.stop_token_ids",
        "token in __request.stop_token_ids and token == tokens[-1]",
        "0.16.0/stops-1",
    ),
    "rejected_drafts_count_as_computed": one(
        "rejected drafts do not count as computed",
        "__request.num_computed_tokens -= num_rejected",
        "pass",
        "0.16.0/spec_eagle-4",
    ),
    "rejections_of_the_preempted_count": one(
        "rejections of a request preempted meanwhile change nothing",
        "if __request.num_computed_tokens > 0:\n    __request.num_computed_tokens -= __rejected",
        "__request.num_computed_tokens -= __rejected",
        "0.16.0/async_spec-0",
    ),
    "rejected_drafts_stay_in_flight": one(
        "rejected drafts leave the flight",
        "__request.num_output_placeholders -= num_rejected",
        "pass",
        "0.16.0/async_spec-3",
    ),
    "drafts_not_in_flight": one(
        "scheduled drafts are in flight beside the token",
        "__request.num_output_placeholders += drafts.get(__request.request_id, 0)",
        "pass",
        "0.16.0/async_spec-3",
    ),
    "cached_though_preempted": one(
        "output of a request preempted meanwhile enters nothing in the cache",
        "__processed >= __request.next_full_tokens and was_running and self.kv_cache.caching",
        "__processed >= __request.next_full_tokens and self.kv_cache.caching",
        equivalent="a preempted request has nothing computed, so nothing of it is processed; a block that a "
        "session fills between two turns enters the cache at its next admission in any case, and nobody in "
        "the recorded runs looks for it before",
    ),
    "output_not_cached": one(
        "ahead of the GPU, blocks enter the cache when their output comes",
        "__processed >= __request.next_full_tokens and was_running and self.kv_cache.caching",
        "False",
        "0.16.0/async_spec-3",
    ),
    "reset_output_not_dropped": one(
        "after a reset the output in flight is dropped",
        "__request.drop_stale_output = True",
        "pass",
        "0.16.0/async_reset-0",
        "AsyncBookkeeping.note_preempted",
    ),
    "prefill_chunks_get_drafts": one(
        "unfinished prefills get no drafts",
        "__request.is_prefill_chunk",
        "False",
        "0.16.0/fsm_spec-1",
        "attach_drafts",
    ),
    "drafts_against_the_grammar": one(
        "drafts are cut where the grammar forbids them",
        "validator.num_valid(__request, __count)",
        "__count",
        "0.16.0/fsm_spec-1",
    ),
    "aborts_in_reverse": one(
        "aborted requests end in the order given",
        "dict.fromkeys(__requests)",
        "reversed(dict.fromkeys(__requests))",
        "0.16.0/connector_async-3",
        "EngineState.finish",
    ),
    "aborted_loads_free_at_once": one(
        "blocks that a load still writes into are not freed",
        "self.end(__request, blocks_are_being_written=__loading)",
        "self.end(__request)",
        "0.16.0/connector_async-5",
    ),
    "sent_blocks_free_at_once": one(
        "blocks are kept until the connector has sent them",
        "not delayed and not __written",
        "not __written",
        "0.16.0/connector_fail-0",
    ),
    "finished_ids_of_one_client": one(
        "finished ids are kept by client",
        "__finished.setdefault(__request.client_index, set())",
        "__finished.setdefault(0, set())",
        "0.16.0/clients-0",
    ),
    "outputs_of_one_client": one(
        "outputs are grouped by client",
        "__grouped.setdefault(__request.client_index, [])",
        "__grouped.setdefault(0, [])",
        "0.16.0/clients-0",
    ),
    "loads_skip_the_last_token": one(
        "after a load of everything the last token is computed",
        "__loaded == __request.num_tokens and (__exactly or not __failed)",
        "False",
        "0.16.0/connector_async-3",
    ),
    "failed_loads_keep_the_last_token": one(
        "vLLM 0.33.0: after a failed load of everything the last token is computed",
        "__loaded == __request.num_tokens and (__exactly or not __failed)",
        "__loaded == __request.num_tokens and not __failed",
        "0.33.0-found/failed_load_keeps_all",
    ),
    "never_run_sharers_keep_what_was_loaded": one(
        "vLLM 0.16.0: a later sharer of a bad block that never ran goes on from -1",
        "__examined if __exactly else __request.num_cached_tokens",
        "__examined",
        "0.16.0-found/conn_shared_fail",
    ),
    "loaded_are_new": one(
        "a preempted request comes back from a load as preempted",
        "RequestStatus.PREEMPTED if __preempted else RequestStatus.WAITING",
        "RequestStatus.WAITING",
        "0.16.0/connector_async-5",
    ),
    "query_without_local_hits": one(
        "the connector is told the local hits",
        "state.connector.match(__request, __hit_tokens)",
        "state.connector.match(__request, 0)",
        "0.16.0/connector_fail-2",
    ),
    "no_answer_is_no_match": one(
        "a connector without an answer lets the request wait",
        "if match is None:\n    return False",
        "if match is None:\n    match = _NO_MATCH",
        "0.16.0/connector_async-3",
    ),
    "bad_blocks_stay_cached": one(
        "with policy fail bad blocks lose their hashes",
        "state.kv_cache.pool.forget(__block)",
        "None",
        "0.16.0/connector_fail-3",
    ),
    "later_sharer_computes_again": one(
        "a second holder of a bad block keeps it",
        "__block not in marked",
        "True",
        "0.16.0/connector_fail-1",
    ),
    "sessions_are_not_lost": one(
        "vLLM 0.16.0: a session whose turn ends while it waits leaves the waiting queue for good",
        "if from_waiting is not None:\n    state.waiting.remove(from_waiting)",
        "pass",
        "0.16.0-found/lost_session-104",
    ),
    "broken_requests_end_first": one(
        "with policy fail requests end after the other outputs of the step",
        "return {__request.request_id for __request in broken}, broken",
        "self.fail(broken); return {__request.request_id for __request in broken}, broken",
        "0.33.0-found/fail_order",
    ),
    "bad_steps_deliver": one(
        "tokens of a step with bad blocks are worthless",
        "return {request.request_id for request in broken_running}, []",
        "return set(), []",
        "0.16.0/connector_fail-1",
    ),
    "sessions_to_the_front": one(
        "a session that goes on queues up at the tail",
        "self.state.waiting.add(__request)\nreturn False",
        "self.state.waiting.add_preempted(__request)\nreturn False",
        "0.16.0/async_streaming-1",
    ),
    "merge_keeps_the_last_token": one(
        "the next input follows what has KV",
        "return min(__request.num_computed_tokens, __request.num_tokens)",
        "return __request.num_tokens",
        "0.16.0/async_streaming-1",
    ),
    "merge_takes_new_max_tokens": one(
        "a session keeps the max_tokens of its first input",
        "if self.state.rules.merge_keeps_all_but_the_last_token:\n    __request.max_tokens = __tokens",
        "__request.max_tokens = __tokens",
        "0.16.0/async_streaming-1",
    ),
    "merge_cuts_stale_hashes": one(
        "a hash with the dropped token stays",
        "return min(__request.num_computed_tokens, __request.num_tokens)",
        "kept = min(__request.num_computed_tokens, __request.num_tokens)\n"
        "self.state.kv_cache.hasher.truncate(__request, kept)\nreturn kept",
        "0.16.0/streaming_stale-1",
    ),
    "merge_keeps_the_old_arrival": one(
        "a session's arrival time is that of its latest input",
        "__request.arrival_time = __input.arrival_time",
        "pass",
        "0.16.0/streaming-7",
    ),
}
