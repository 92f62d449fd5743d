"""After the model ran: stops, rolled-back drafts, and what the clients are told."""

from __future__ import annotations

import pytest

from scheduler import EOS_TOKEN_ID, FinishReason, InvariantError, Request, RequestStatus, SpeculativeConfig
from scheduler.request import MOVES, check_move
from tests.scheduler.helpers import free_blocks, ids, make_engine, make_requests, sample, scheduled, step


def one_running(**knobs: object) -> tuple[object, Request]:
    """An engine whose only request has computed its prompt and wants its second token."""
    engine = make_engine()
    request = Request(0, ((1, 20),), 10, **knobs)  # type: ignore[arg-type]
    engine.add_request(request)
    step(engine)
    return engine, request


def test_eos_ends_a_request_unless_it_is_ignored() -> None:
    engine, request = one_running()
    _, outputs = step(engine, [[EOS_TOKEN_ID]])
    assert outputs.entries == [(request, 1, FinishReason.STOP)]
    assert request.status is RequestStatus.FINISHED_STOPPED
    engine, request = one_running(ignore_eos=True)
    _, outputs = step(engine, [[EOS_TOKEN_ID]])
    assert outputs.entries == [(request, 1, None)]


def test_a_stop_token_is_reported_as_the_reason() -> None:
    engine, request = one_running(stop_token_ids=(77,))
    step(engine, [[77]])
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert request.stop_reason == 77


def test_nothing_ends_a_request_before_min_tokens() -> None:
    engine, request = one_running(min_tokens=3, stop_token_ids=(77,))
    step(engine, [[77]])
    assert not request.is_finished
    step(engine, [[77]])
    assert request.is_finished


def test_max_tokens_ends_with_length() -> None:
    engine = make_engine()
    engine.add_request(make_requests(1, max_tokens=2)[0])
    assert step(engine)[1].entries[0][2] is None
    assert step(engine)[1].entries[0][2] is FinishReason.LENGTH


def test_an_ended_request_frees_its_blocks_at_once_and_is_reported_with_the_next_step() -> None:
    engine = make_engine(num_blocks=9)
    engine.add_request(make_requests(1, max_tokens=1)[0])
    step(engine)
    assert len(free_blocks(engine)) == 8
    assert engine.has_work()
    assert not engine.has_unfinished_requests()
    output, outputs = step(engine)
    assert output.finished_req_ids == {0}
    assert not output.requests
    assert not outputs.entries
    assert not engine.has_work()


def test_aborts_free_at_once_and_tokens_in_flight_for_them_are_dropped() -> None:
    engine = make_engine(num_blocks=9, include_finished_set=True)
    for request in make_requests(2):
        engine.add_request(request)
    output = engine.schedule()
    engine.abort_requests([0, 0, 99])
    assert len(free_blocks(engine)) == 6
    outputs = engine.update(output, sample)
    assert ids([entry[0] for entry in outputs.entries]) == [1]
    assert outputs.finished_by_client == {0: {0}}


def test_outputs_are_grouped_by_client_in_order_of_their_first() -> None:
    engine = make_engine()
    for request, client in zip(make_requests(3), (4, 2, 4), strict=True):
        request.client_index = client
        engine.add_request(request)
    _, outputs = step(engine)
    assert {
        client: [e[0].request_id for e in entries] for client, entries in outputs.by_client().items()
    } == {
        4: [0, 2],
        2: [1],
    }
    assert list(outputs.by_client()) == [4, 2]


def speculating(kind: str = "ngram", k: int = 3) -> tuple[object, Request]:
    engine = make_engine(speculative=SpeculativeConfig(kind, k))  # type: ignore[arg-type]
    request = Request(0, ((1, 20),), 20)
    engine.add_request(request)
    output, _ = step(engine)
    engine.propose_drafts(output, [k])
    return engine, request


def test_drafts_are_scheduled_and_the_rejected_are_rolled_back() -> None:
    engine, request = speculating()
    output = engine.schedule()
    assert scheduled(output) == {0: 4}  # the last sampled token and three drafts
    assert output.scheduled_spec_decode_tokens == {0: 3}
    assert request.num_computed_tokens == 24
    engine.update(output, lambda _: [[5, 6]])  # one draft accepted
    assert request.num_tokens == 23
    assert request.num_computed_tokens == 22
    stats = engine.spec_decode_stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 1)


def test_drafts_are_good_for_one_step_only() -> None:
    engine, request = speculating()
    output = engine.schedule()
    engine.update(output, lambda _: [[5]])
    assert request.num_draft_tokens == 0
    assert scheduled(engine.schedule()) == {0: 1}


@pytest.mark.parametrize(("kind", "blocks"), [("ngram", 2), ("draft_model", 3), ("eagle", 3)])
def test_drafters_with_a_model_of_their_own_want_slots_ahead(kind: str, blocks: int) -> None:
    engine, request = speculating(kind, 8)  # 21 known tokens + 8 drafts = 29 slots, + 8 ahead = 37
    engine.schedule()
    assert len(request.block_tables[0]) == blocks


def test_eagle_computes_the_last_hit_block_again() -> None:
    engine = make_engine(speculative=SpeculativeConfig("eagle", 2))
    for i in range(2):
        engine.add_request(Request(i, ((1, 50),), 5))
    output, _ = step(engine)
    assert output.num_computed_before == [0, 32]


def test_tokens_after_a_stop_are_cut() -> None:
    engine, request = speculating()
    output = engine.schedule()
    outputs = engine.update(output, lambda _: [[5, EOS_TOKEN_ID, 6, 7]])
    assert outputs.entries == [(request, 2, FinishReason.STOP)]
    assert request.num_output_tokens == 3


def test_a_status_changes_only_along_the_engines_ways() -> None:
    for old in RequestStatus:
        for new in RequestStatus:
            if new in MOVES[old]:
                check_move(0, old, new)
            else:
                with pytest.raises(InvariantError, match=new.name):
                    check_move(0, old, new)
    assert all(not MOVES[status] for status in RequestStatus if status.is_finished)
    request = Request(0, ((1, 5),), 5)
    with pytest.raises(InvariantError):
        request.move_to(RequestStatus.PREEMPTED)
