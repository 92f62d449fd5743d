"""When nothing moves any more, the engine can say why, and it is never wrong about for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler import (
    EngineCore,
    ExternalMatch,
    KVCacheConfig,
    Request,
    RequestStatus,
    SchedulerConfig,
    SpeculativeConfig,
)
from scheduler.release import release
from scheduler.standstill import examine
from sim.cluster.clock import ProgressGuard, StuckError
from sim.evidence.conform.case import load_case
from sim.evidence.conform.replay import Replay
from tests.policies.helpers import fresh

GOLDEN = Path(__file__).parents[1] / "golden" / "0.16.0"


def test_the_recorded_deadlock_of_sessions_is_explained() -> None:
    """Real vLLM hung here: sessions in the queue hold 86 of 91 blocks behind a head that needs six."""
    replay = Replay(load_case(GOLDEN / "streaming-4.json.gz"))
    for _ in replay.records():
        pass
    found = examine(replay.engine)
    assert (found.head, found.needed_blocks, found.free_blocks) == (35, 6, 5)
    assert found.waits_for == (), "nothing from outside can help"
    assert sum(holder.num_blocks for holder in found.holders) == 86
    assert {holder.status for holder in found.holders} == {RequestStatus.WAITING}
    assert str(found).startswith(
        "request 35 at the head of the waiting queue needs 6 KV blocks; 5 blocks are free; "
        "blocks are held by request 15 (WAITING) 18, request 1 (WAITING) 15,"
    )


def test_in_the_later_release_too_holders_can_own_all_blocks_and_lack_one_another_s() -> None:
    """vLLM 0.33 serves holders first, and still: seven sessions hold all, and the first needs nine more."""
    replay = Replay(load_case(GOLDEN.parent / "0.33.0" / "x_n_session_preempt-7.json.gz"))
    for _ in replay.records():
        pass
    found = examine(replay.engine)
    assert (found.head, found.needed_blocks, found.free_blocks) == (18, 9, 0)
    assert found.waits_for == ()
    assert len(found.holders) == 7


def test_idle_sessions_that_take_all_places_are_named() -> None:
    """From 0.26 on a session that waits for its next input keeps its place in the running list."""
    engine = EngineCore(SchedulerConfig(max_num_seqs=1), KVCacheConfig(50), release=release("0.33.0"))
    session, other = Request(0, ((1, 5),), 1, resumable=True), Request(1, ((900, 5),), 1)
    engine.add_request(session)
    engine.update(engine.schedule(), lambda _: [[5]])
    engine.add_request(other)
    assert not engine.schedule().requests
    found = examine(engine)
    assert found.reason == "1 idle sessions take all places"
    assert ("input", 0) in found.waits_for


def test_the_recorded_run_that_waits_for_a_lost_token_is_explained() -> None:
    """A reset under asynchronous scheduling: the request counts a token in flight that no step will bring."""
    replay = Replay(load_case(GOLDEN / "async_reset-1.json.gz"))
    for _ in replay.records():
        pass
    found = examine(replay.engine)
    assert found.head is None
    assert found.reason == "request 5 runs and counts 1 tokens in flight that will never come"
    assert found.waits_for == ()


CASES = [
    *("combined-18", "combined-30", "connector_async-0", "connector_async-1", "connector_fail-0"),
    *("connector_sync-4", "fsm_spec-1", "stuck_head-0", "stuck_head-1", "streaming-4"),
]
LATER_CASES = [
    *("combined_big-0", "connector_async-0", "connector_fail-0", "connector_sync-4", "fsm_spec-1"),
    *("n_held_conn-0", "n_held_conn-2", "stuck_head-0", "stuck_head-1"),
]


@pytest.mark.parametrize("path", [*(f"0.16.0/{n}" for n in CASES), *(f"0.33.0/{n}" for n in LATER_CASES)])
def test_whoever_is_said_to_wait_for_nothing_never_moves_before_an_event(path: str) -> None:
    """In recorded runs: after a verdict of for ever, every step is empty until the script interferes."""
    case = load_case(GOLDEN.parent / f"{path}.json.gz")
    event_times = {event.t for event in case.events}
    replay = Replay(case)
    doomed, verdicts = False, 0
    for record in replay.records():
        if record["t"] in event_times:
            doomed = False
        scheduled = bool(record.get("sch"))
        assert not (doomed and scheduled), f"step {record['t']} schedules something after all"
        idle = not scheduled and not replay._in_flight and not record.get("pre")
        if idle and replay.engine.has_unfinished_requests():
            doomed = not examine(replay.engine).waits_for
            verdicts += 1
    assert verdicts


def test_a_prompt_that_must_not_be_cut_and_exceeds_the_step_is_named() -> None:
    config = SchedulerConfig(max_num_batched_tokens=64, enable_chunked_prefill=False)
    engine = EngineCore(config, KVCacheConfig(50))
    engine.add_request(fresh([100])[0])
    assert not engine.schedule().requests
    found = examine(engine)
    assert found.reason == (
        "request 0 at the head of the waiting queue needs more than the 64 tokens of a step, "
        "and prompts must not be cut"
    )
    assert found.needed_blocks == 0
    assert found.waits_for == ()


def test_who_waits_for_a_grammar_is_not_in_a_deadlock() -> None:
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(50))
    engine.add_request(Request(0, ((1, 5),), 4, needs_grammar=True))
    assert not engine.schedule().requests
    assert examine(engine).waits_for == (("grammar", 0),)
    engine.grammar_ready(0)
    assert engine.schedule().requests


class _NeverKnows:
    """A connector that has no answer yet."""

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        return None

    def note_allocated(self, request: Request, num_external_tokens: int) -> None: ...

    def delays_free(self, request: Request) -> bool:
        return False


def test_who_waits_for_a_connectors_answer_is_not_in_a_deadlock() -> None:
    engine = EngineCore(SchedulerConfig(), KVCacheConfig(50), connector=_NeverKnows())
    engine.add_request(fresh([20])[0])
    assert not engine.schedule().requests
    found = examine(engine)
    assert found.waits_for == (("connector", 0),)
    assert found.reason == "every waiting request waits for something outside"


def test_looking_changes_nothing() -> None:
    replay = Replay(load_case(GOLDEN / "streaming-4.json.gz"))
    for _ in replay.records():
        pass
    engine = replay.engine
    before = (engine.prefix_cache_stats, list(engine.waiting), list(engine.kv_cache.pool.free_queue))
    assert examine(engine) == examine(engine)
    assert before == (engine.prefix_cache_stats, list(engine.waiting), list(engine.kv_cache.pool.free_queue))


def one_token_a_step(version: str, drafts: int) -> EngineCore:
    """Two requests, of which one runs at a time; a long prompt gets one token in a step."""
    config = SchedulerConfig(
        max_num_seqs=1,
        long_prefill_token_threshold=1,
        speculative=SpeculativeConfig("mtp_multi", drafts),
    )
    engine = EngineCore(config, KVCacheConfig(50, enable_caching=False), release=release(version))
    engine.add_request(Request(0, ((1, 5),), 1, ignore_eos=True))
    engine.add_request(Request(1, ((900, 5),), 1, ignore_eos=True))
    return engine


def step_on(engine: EngineCore, steps: int) -> None:
    for _ in range(steps):
        output = engine.schedule()
        engine.update(output, lambda out: [[5] if samples else [] for samples in out.samples])


def test_a_prompt_whose_end_a_drafter_reads_ahead_over_can_starve_under_a_cap() -> None:
    """vLLM 0.33 cuts a chunk so that as many tokens are left as the drafter reads: here to nothing."""
    engine = one_token_a_step("0.33.0", drafts=2)
    step_on(engine, 20)
    assert engine.requests[0].num_computed_tokens == 3
    assert not engine.schedule().requests
    found = examine(engine)
    assert found.reason == (
        "request 0 lacks 2 tokens, which the drafter reads ahead over and so must come in one step, "
        "but a step gives a long prompt no more than 1"
    )
    assert found.waits_for == ()
    guard = ProgressGuard(engine.config)
    guard.on_empty_schedule(engine, preempted=False)
    with pytest.raises(StuckError, match="deadlock in replica 0: request 0 lacks 2 tokens"):
        guard.on_empty_schedule(engine, preempted=False)


@pytest.mark.parametrize(("version", "drafts"), [("0.33.0", 1), ("0.32.0", 2)])
def test_it_does_not_where_the_cap_is_enough_or_nobody_cuts(version: str, drafts: int) -> None:
    engine = one_token_a_step(version, drafts)
    step_on(engine, 20)
    assert not engine.has_unfinished_requests()


def test_a_waiting_prompt_that_can_only_starve_is_named_and_stops_nobody() -> None:
    engine = one_token_a_step("0.33.0", drafts=2)
    engine.abort_requests([0, 1])
    engine.add_request(Request(2, ((1, 2),), 1, ignore_eos=True))
    engine.add_request(Request(3, ((1, 2),), 1, ignore_eos=True))
    assert not engine.schedule().requests
    reason = examine(engine).reason
    assert "request 2 lacks 2 tokens" in reason
    assert "request 3 lacks 2 tokens" in reason
