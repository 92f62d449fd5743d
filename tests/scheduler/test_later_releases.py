"""What later releases do otherwise: one story a rule, told under 0.16.0 and under 0.33.0."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import (
    EOS_TOKEN_ID,
    EngineCore,
    ExternalMatch,
    GroupKind,
    KVGroupSpec,
    KVReport,
    Request,
    SessionInput,
    SpeculativeConfig,
)
from scheduler.release import release
from tests.scheduler.helpers import free_blocks, ids, make_engine, make_requests, sample, scheduled, step

OLD, NEW = release("0.16.0"), release("0.33.0")


def engine_of(version: str, **knobs: Any) -> EngineCore:
    return make_engine(release=release(version), **knobs)


@pytest.mark.parametrize(("version", "admitted"), [("0.16.0", {0: 16}), ("0.33.0", {})])
def test_admission_needs_room_for_the_whole_prompt(version: str, admitted: dict[int, int]) -> None:
    engine = engine_of(version, num_blocks=4, max_num_batched_tokens=16)
    engine.add_request(Request(0, ((1, 60),), 5))  # 4 blocks, there are 3
    assert scheduled(step(engine)[0]) == admitted


def test_the_watermark_stays_free_beside_running_requests_only() -> None:
    engine = engine_of("0.33.0", num_blocks=10, watermark=0.3)
    engine.add_request(Request(0, ((1, 112),), 5))  # 7 of 9 blocks, alone
    engine.add_request(Request(1, ((500, 16),), 5))  # one more, but 3 must stay free
    assert scheduled(step(engine)[0]) == {0: 112}


@pytest.mark.parametrize(
    ("version", "queue"), [("0.16.0", [4, 5, 6, 3, 2, 1]), ("0.33.0", [3, 4, 5, 6, 2, 1])]
)
def test_freed_blocks_that_cannot_be_hit_are_reused_first(version: str, queue: list[int]) -> None:
    engine = engine_of(version, num_blocks=7)
    engine.add_request(Request(0, ((1, 40),), 1))  # two full blocks and a part
    step(engine)
    assert free_blocks(engine) == queue


@pytest.mark.parametrize(
    ("version", "queue"), [("0.16.0", [4, 5, 6, 3, 2, 1]), ("0.33.0", [3, 2, 1, 4, 5, 6])]
)
def test_without_caching_all_freed_blocks_are_reused_first(version: str, queue: list[int]) -> None:
    engine = engine_of(version, num_blocks=7, enable_caching=False)
    engine.add_request(Request(0, ((1, 40),), 1))
    step(engine)
    assert free_blocks(engine) == queue


@pytest.mark.parametrize(("version", "tokens"), [("0.16.0", 10), ("0.33.0", 50)])
def test_the_threshold_is_not_for_a_lone_request(version: str, tokens: int) -> None:
    engine = engine_of(version, long_prefill_token_threshold=10)
    engine.add_request(Request(0, ((1, 50),), 5))
    assert scheduled(step(engine)[0]) == {0: tokens}


def test_an_adaptive_threshold_shares_the_batch() -> None:
    for threshold, shares in ((1, {0: 30, 1: 30, 2: 30}), (0, {0: 50, 1: 40})):
        engine = engine_of(
            "0.33.0",
            long_prefill_adaptive=True,
            long_prefill_token_threshold=threshold,
            max_num_batched_tokens=90,
        )
        for i in range(3):
            engine.add_request(Request(i, ((1000 * (i + 1), 50),), 5))
        assert scheduled(step(engine)[0]) == shares


def test_a_step_can_be_capped_below_the_batch_size() -> None:
    engine = engine_of("0.33.0", max_num_batched_tokens=64, max_num_scheduled_tokens=20)
    engine.add_request(Request(0, ((1, 50),), 5))
    assert scheduled(step(engine)[0]) == {0: 20}


@pytest.mark.parametrize(("version", "scheduled_then"), [("0.16.0", {}), ("0.33.0", {1: 1})])
def test_under_priority_a_self_preemption_no_longer_ends_the_phase(
    version: str, scheduled_then: dict[int, int]
) -> None:
    engine = engine_of(version, num_blocks=5, policy="priority")
    unimportant, important = Request(0, ((1, 30),), 50, priority=9), Request(1, ((500, 20),), 50)
    engine.add_request(unimportant)
    step(engine)
    engine.add_request(important)
    while not engine.num_preemptions:
        output, _ = step(engine)
    assert ids(output.preempted) == [0]
    assert scheduled(output) == scheduled_then


@pytest.mark.parametrize(("version", "requests", "hits"), [("0.16.0", 3, 64), ("0.33.0", 1, 0)])
def test_lookups_are_counted_when_admitted(version: str, requests: int, hits: int) -> None:
    engine = engine_of(version, num_blocks=5)
    engine.add_request(Request(0, ((1, 40),), 50))
    for _ in range(2):
        step(engine)
        if len(engine.requests) == 1:
            engine.add_request(Request(1, ((1, 32), (500, 60)), 5))  # hits two blocks and never fits
    step(engine)
    assert (engine.prefix_cache_stats.requests, engine.prefix_cache_stats.hits) == (requests, hits)


def session_between_turns(engine: EngineCore) -> Request:
    session = Request(0, ((1, 20),), 10, resumable=True)
    engine.add_request(session)
    step(engine)
    step(engine, [[EOS_TOKEN_ID]])
    return session


@pytest.mark.parametrize(("version", "admitted"), [("0.16.0", [1, 2]), ("0.33.0", [1])])
def test_idle_sessions_take_a_place(version: str, admitted: list[int]) -> None:
    engine = engine_of(version, max_num_seqs=2)
    session_between_turns(engine)
    for i in (1, 2):
        engine.add_request(Request(i, ((1000 * i, 20),), 5))
    assert list(scheduled(step(engine)[0])) == admitted


@pytest.mark.parametrize(("version", "first"), [("0.16.0", 1), ("0.33.0", 0)])
def test_requests_that_hold_blocks_are_served_first(version: str, first: int) -> None:
    engine = engine_of(version, max_num_seqs=2, policy="priority")
    session_between_turns(engine)
    engine.add_request(Request(1, ((500, 20),), 5, priority=-1))
    engine.submit_input(0, SessionInput(((900, 10),), 10))
    assert next(iter(scheduled(step(engine)[0]))) == first


@pytest.mark.parametrize(("version", "limit"), [("0.16.0", 10), ("0.33.0", 3)])
def test_the_next_input_brings_its_own_max_tokens(version: str, limit: int) -> None:
    engine = engine_of(version)
    session = session_between_turns(engine)
    engine.submit_input(0, SessionInput(((900, 10),), 3))
    assert session.max_tokens == limit


@pytest.mark.parametrize(("version", "stops"), [("0.16.0", False), ("0.33.0", True)])
def test_min_tokens_is_no_longer_looked_at(version: str, stops: bool) -> None:
    engine = engine_of(version)
    request = Request(0, ((1, 20),), 10, min_tokens=5)
    engine.add_request(request)
    step(engine, [[EOS_TOKEN_ID]])
    assert request.is_finished is stops


@pytest.mark.parametrize(("version", "tokens"), [("0.16.0", 1), ("0.33.0", 4)])
def test_with_speculation_a_one_token_admission_is_padded(version: str, tokens: int) -> None:
    engine = engine_of(version, speculative=SpeculativeConfig("ngram", 3))
    engine.add_request(Request(0, ((1, 17),), 5))
    step(engine)
    engine.add_request(Request(1, ((1, 17),), 5))  # hits 16 of its 17 tokens
    output, _ = step(engine)
    assert scheduled(output)[1] == tokens


def test_drafting_slots_count_against_the_batch() -> None:
    for version, second in (("0.16.0", 34), ("0.33.0", 32)):
        engine = engine_of(
            version, speculative=SpeculativeConfig("draft_model", 2), max_num_batched_tokens=64
        )
        for i, length in enumerate((30, 40)):
            engine.add_request(Request(i, ((1000 * (i + 1), length),), 5))
        assert scheduled(step(engine)[0]) == {0: 30, 1: second}


def test_hashes_that_cover_the_next_token_need_no_drop() -> None:
    for hashes, before in ((False, 32), (True, 48)):
        engine = engine_of("0.33.0", speculative=SpeculativeConfig("eagle", 2, lookahead_hashes=hashes))
        for i in range(2):
            engine.add_request(Request(i, ((1, 60),), 5))
        assert step(engine)[0].num_computed_before == [0, before]


def test_a_prefill_leaves_the_drafter_what_it_reads_ahead() -> None:
    engine = engine_of("0.33.0", speculative=SpeculativeConfig("mtp_multi", 4), max_num_batched_tokens=50)
    engine.add_request(Request(0, ((1, 52),), 5))
    assert scheduled(step(engine)[0]) == {0: 48}  # 50 would leave 2 of the 4


@pytest.mark.parametrize(
    ("retention", "hashed"), [(None, [1, 2, 3, 4, 5, 6]), (0, [4, 5]), (48, [2, 3, 4, 5, 6])]
)
def test_window_groups_enter_only_blocks_that_can_be_hit(retention: int | None, hashed: list[int]) -> None:
    # window 20 needs two blocks before the place to end; a replay of 96 tokens ends at 80
    spec = KVGroupSpec(GroupKind.SLIDING, 16, window=20)
    engine = engine_of("0.33.0", groups=(spec,), window_retention_tokens=retention)
    engine.add_request(Request(0, ((1, 96),), 5))
    step(engine)
    assert [b for b, key in enumerate(engine.kv_cache.pool.key_of_block) if key is not None] == hashed


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
def test_output_in_flight_at_a_preemption_is_delivered(version: str) -> None:
    engine = engine_of(version, async_scheduling=True, num_blocks=5, reserve_full_prompt=False)
    first, second = Request(0, ((1, 32),), 10), Request(1, ((500, 32),), 10)
    engine.add_request(first)
    engine.add_request(second)
    in_flight = engine.schedule()
    assert engine.schedule().preempted == [second]
    engine.update(in_flight, sample)
    assert second.num_output_tokens == 1


def test_after_a_reset_no_later_output_is_lost() -> None:
    # the trap of 0.16.0: the flag of a reset eats a token that was sampled after it
    for version, lost in (("0.16.0", True), ("0.33.0", False)):
        engine = engine_of(version, async_scheduling=True, max_num_batched_tokens=32)
        request = Request(0, ((1, 40),), 2, ignore_eos=True)
        engine.add_request(request)
        in_flight = engine.schedule()  # an unfinished prefill: nothing sampled in flight
        engine.reset_prefix_cache(preempt_running=True)
        engine.update(in_flight, lambda _: [[]])
        for _ in range(8):
            output = engine.schedule()
            engine.update(output, sample)
        assert request.is_finished is not lost


def test_pauses_stop_what_is_new_or_everything() -> None:
    engine = engine_of("0.33.0")
    session_between_turns(engine)
    engine.submit_input(0, SessionInput(((900, 10),), 10))
    engine.add_request(Request(1, ((500, 20),), 5))
    engine.pause(2)
    assert not engine.has_unfinished_requests()
    assert scheduled(step(engine)[0]) == {}
    engine.pause(1)
    assert list(scheduled(step(engine)[0])) == [0]  # it holds blocks
    engine.pause(0)
    assert list(scheduled(step(engine)[0])) == [0, 1]


def test_prefills_wait_for_their_turn_while_something_decodes() -> None:
    engine = engine_of("0.33.0", prefill_interval=3, max_num_batched_tokens=64)
    engine.add_request(Request(0, ((1, 20),), 50))
    step(engine)
    engine.add_request(Request(1, ((500, 40),), 50))
    admitted = [1 in scheduled(step(engine)[0]) for _ in range(3)]
    assert admitted == [False, False, True]


class BackgroundLoads:
    """Every request's first tokens lie outside, and are loaded in the background."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch:
        num_tokens = max(0, min(self.tokens, request.num_tokens) - num_local_tokens)
        return ExternalMatch(num_tokens, num_tokens > 0)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None: ...

    def delays_free(self, request: Request) -> bool:
        return False


@pytest.mark.parametrize(("version", "computed"), [("0.16.0", 32), ("0.33.0", 20)])
def test_a_finished_load_counts_what_was_matched(version: str, computed: int) -> None:
    engine = engine_of(version, connector=BackgroundLoads(20))
    engine.add_request(Request(0, ((1, 50),), 5))
    output = engine.schedule()
    engine.update(output, sample, KVReport(received=[0]))
    output, _ = step(engine)
    assert output.num_computed_before == [computed]


def test_a_rule_can_be_tried_on_an_older_release() -> None:
    tried = OLD.with_rules(reuse_unhashed_first=True)
    engine = make_engine(release=tried, num_blocks=7)
    for request in make_requests(1, prompt_tokens=40, max_tokens=1):
        engine.add_request(request)
    step(engine)
    assert free_blocks(engine) == [3, 4, 5, 6, 2, 1]
    assert NEW.rules.reuse_unhashed_first
