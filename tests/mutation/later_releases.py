"""Rules that vLLM 0.33.0 has and 0.16.0 has not, undone one at a time, and its switches."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, one

LATER_RULES: dict[str, Mutant] = {
    f"without_{rule}": one(
        f"vLLM 0.33.0: {rule}", f"{rule}: bool = _since(__version)", f'{rule}: bool = _since("99.0.0")', case
    )
    for rule, case in (
        ("victims_move_the_walk", "0.33.0/priority_preempt-2"),
        ("lone_requests_ignore_the_threshold", "0.33.0/long_prefill-0"),
        ("self_victims_do_not_end_the_phase", "0.33.0/priority_preempt-2"),
        ("pipelines_space_decodes", "0.33.0-pipeline/stages_a2_preempt_cache-4"),
        ("pipelines_plan_one_ahead", "0.33.0-pipeline/stages_a3_n_window_async-1"),
        ("drafting_slots_are_charged", "0.33.0/n_cap-3"),
        ("last_chunks_feed_the_drafter", "0.33.0/n_mtp_burst-0"),
        ("pad_new_decodes", "0.33.0/fsm_spec-0"),
        ("idle_sessions_take_a_place", "0.33.0/async_streaming-1"),
        ("count_lookups_when_admitted", "0.33.0/spec_eagle-4"),
        ("holders_first", "0.33.0/connector_async-3"),
        ("loads_leave_room_for_prefills", "0.33.0/connector_async-3"),
        ("lookahead_at_admission", "0.33.0/spec_eagle-4"),
        ("all_running_adapters_count", "0.33.0/n_combined-1"),
        ("skipping_readers_still_ask_the_connector", "0.33.0/combined-6"),
        ("reuse_unhashed_first", "0.33.0/spec_eagle-4"),
        ("enter_reachable_window_blocks", "0.33.0/n_window_async-1"),
        ("windows_drop_processed_tokens", "0.33.0/n_window_async-0"),
        ("enter_common_lengths", "0.33.0/n_mtp_burst-0"),
        ("enter_processed_tokens", "0.33.0-found/async_sync_fail"),
        ("enter_after_outputs", "0.33.0/spec_eagle-4"),
        ("drop_last_hit_once", "0.33.0/n_eagle_hybrid-3"),
        ("read_states_once_written", "0.33.0/mamba-1"),
        ("defer_frees_in_flight", "0.33.0/n_async_conn-0"),
        ("track_stale_output", "0.33.0/n_async_conn-0"),
        ("ignore_min_tokens", "0.33.0/min_tokens-2"),
        ("uncount_cut_tokens", "0.33.0/n_dynk-0"),
        ("merge_keeps_all_but_the_last_token", "0.33.0/n_long_sessions-1"),
        ("sessions_queue_after_the_update", "0.33.0/x_n_session_preempt-6"),
        ("loads_count_exactly", "0.33.0/connector_sync-1"),
        ("step_while_blocks_are_held", "0.33.0/connector_async-0"),
        ("empty_batches_queue", "0.33.0/n_held_conn-1"),
        ("checkpoint_states", "0.33.0/mamba-2"),
    )
}

SWITCHES: dict[str, Mutant] = {
    "no_whole_prompt_room": one(
        "vLLM 0.33.0: admission needs room for the whole prompt",
        "bool(__config.reserve_full_prompt)",
        "False",
        "0.33.0/spec_eagle-4",
    ),
    "watermark_for_the_first_too": one(
        "the watermark holds beside running requests only",
        "self._watermark_blocks if self.state.running else 0",
        "self._watermark_blocks",
        "0.33.0/n_watermark_big-1",
        places=2,
    ),
    "watermark_rounded_up": one(
        "the watermark is rounded down",
        "int(__config.watermark * __blocks)",
        "int(__config.watermark * __blocks + 0.999)",
        "0.33.0/n_watermark_big-0",
    ),
}
