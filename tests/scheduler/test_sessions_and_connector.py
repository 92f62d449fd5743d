"""Streaming sessions between two turns, and prefixes that come through the KV connector."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler import (
    EOS_TOKEN_ID,
    ExternalMatch,
    FinishReason,
    KVReport,
    Request,
    RequestStatus,
    SessionInput,
)
from tests.scheduler.helpers import free_blocks, ids, make_engine, sample, scheduled, step


def session_after_its_first_turn() -> tuple[object, Request]:
    engine = make_engine()
    session = Request(0, ((1, 20),), 10, resumable=True)
    engine.add_request(session)
    step(engine)
    step(engine, [[EOS_TOKEN_ID]])
    return engine, session


def test_a_session_between_turns_keeps_its_blocks_and_is_no_unfinished_work() -> None:
    engine, session = session_after_its_first_turn()
    assert session.status is RequestStatus.WAITING_FOR_STREAMING_REQ
    assert session.block_tables == [[1, 2]]
    assert not engine.has_unfinished_requests()


def test_the_next_input_follows_what_has_kv_and_the_last_token_is_dropped() -> None:
    engine, session = session_after_its_first_turn()
    assert (session.num_tokens, session.num_computed_tokens) == (22, 21)
    engine.submit_input(0, SessionInput(((900, 10),), 10))
    assert (session.num_tokens, session.num_prompt_tokens, session.num_output_tokens) == (31, 31, 0)
    output, _ = step(engine)
    assert scheduled(output) == {0: 10}
    assert ids(output.new) == [0]


def test_an_input_for_a_busy_session_is_taken_up_when_its_turn_ends() -> None:
    engine = make_engine()
    session = Request(0, ((1, 20),), 10, resumable=True)
    engine.add_request(session)
    step(engine)
    engine.submit_input(0, SessionInput(((900, 10),), 10))
    _, outputs = step(engine, [[EOS_TOKEN_ID]])
    assert outputs.entries[0][2] is FinishReason.STOP
    assert session.status is RequestStatus.WAITING
    assert session.num_tokens == 31


def test_the_end_of_an_idle_session_is_an_abort_and_that_of_a_busy_one_a_finish() -> None:
    engine, session = session_after_its_first_turn()
    engine.submit_input(0, None)
    assert session.status is RequestStatus.FINISHED_ABORTED
    assert len(free_blocks(engine)) == 100
    engine = make_engine()
    busy = Request(0, ((1, 20),), 10, resumable=True)
    engine.add_request(busy)
    step(engine)
    engine.submit_input(0, None)
    step(engine, [[EOS_TOKEN_ID]])
    assert busy.status is RequestStatus.FINISHED_STOPPED


@dataclass
class Shelf:
    """A connector with the same number of tokens for everybody."""

    tokens: int
    asynchronous: bool = False
    unknown: int = 0
    keep: bool = False
    allocated: list[tuple[int, int]] = field(default_factory=list)

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        if self.unknown:
            self.unknown -= 1
            return None
        num_tokens = 0 if self.allocated else max(self.tokens - num_local_tokens, 0)
        return ExternalMatch(num_tokens, self.asynchronous and num_tokens > 0)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        self.allocated.append((request.request_id, num_external_tokens))

    def delays_free(self, request: Request) -> bool:
        return self.keep


def test_synchronous_loads_count_as_computed_in_the_same_step() -> None:
    shelf = Shelf(32)
    engine = make_engine(connector=shelf)
    request = Request(0, ((1, 40),), 5)
    engine.add_request(request)
    output, _ = step(engine)
    assert scheduled(output) == {0: 8}
    assert shelf.allocated == [(0, 32)]
    assert (request.num_cached_tokens, request.num_external_tokens) == (32, 32)


def test_a_connector_that_does_not_know_yet_lets_others_pass() -> None:
    engine = make_engine(connector=Shelf(0, unknown=1))
    for i in range(2):
        engine.add_request(Request(i, ((1000 * (i + 1), 40),), 5))
    assert list(scheduled(step(engine)[0])) == [1]
    assert list(scheduled(step(engine)[0])) == [1, 0]


def test_an_asynchronous_load_holds_blocks_and_neither_budget_nor_a_place() -> None:
    engine = make_engine(connector=Shelf(32, asynchronous=True), max_num_seqs=1, num_blocks=9)
    loading, other = Request(0, ((1, 40),), 5), Request(1, ((500, 20),), 2)
    engine.add_request(loading)
    engine.add_request(other)
    output, _ = step(engine)
    assert list(scheduled(output)) == [1]
    assert loading.status is RequestStatus.WAITING_FOR_REMOTE_KVS
    assert len(free_blocks(engine)) == 4
    output = engine.schedule()
    engine.update(output, sample, KVReport(received=[0]))
    output, _ = step(engine)
    assert scheduled(output) == {0: 8}
    assert ids(output.new) == [0]


def test_blocks_of_an_aborted_load_are_released_when_the_load_is_reported() -> None:
    engine = make_engine(connector=Shelf(32, asynchronous=True), num_blocks=9)
    engine.add_request(Request(0, ((1, 40),), 5))
    step(engine)
    engine.abort_requests([0])
    assert len(free_blocks(engine)) == 6
    output = engine.schedule()
    engine.update(output, sample, KVReport(received=[0]))
    assert len(free_blocks(engine)) == 8


def test_the_connector_may_keep_the_blocks_of_an_ended_request_until_they_are_sent() -> None:
    engine = make_engine(connector=Shelf(0, keep=True), num_blocks=9)
    engine.add_request(Request(0, ((1, 40),), 1))
    step(engine)
    assert len(free_blocks(engine)) == 5
    assert list(engine.requests) == [0]
    output = engine.schedule()
    engine.update(output, sample, KVReport(sent=[0]))
    assert len(free_blocks(engine)) == 8
    assert not engine.requests


def test_bad_blocks_of_a_synchronous_load_are_computed_again() -> None:
    engine = make_engine(connector=Shelf(32), num_blocks=9)
    request = Request(0, ((1, 40),), 5)
    engine.add_request(request)
    output = engine.schedule()
    outputs = engine.update(output, sample, KVReport(invalid_blocks=[request.block_tables[0][1]]))
    assert outputs.entries == []
    assert request.num_computed_tokens == 16
    assert scheduled(step(engine)[0]) == {0: 24}


def test_bad_blocks_end_the_request_if_the_policy_is_to_fail() -> None:
    engine = make_engine(connector=Shelf(32), num_blocks=9, kv_load_failure_policy="fail")
    request = Request(0, ((1, 40),), 5)
    engine.add_request(request)
    output = engine.schedule()
    outputs = engine.update(output, sample, KVReport(invalid_blocks=[request.block_tables[0][1]]))
    assert outputs.entries == [(request, 0, FinishReason.ERROR)]
    assert len(free_blocks(engine)) == 8
