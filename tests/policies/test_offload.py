"""Preemption by offload: what moves over the link, when, and what it saves; every time worked out by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Request, RequestStatus
from scheduler.release import release
from sim.cluster.connectors import HostOffload, OffloadSpec
from sim.cluster.recorder import Status
from sim.cluster.servers import Link
from tests.cluster.helpers import FixedTimer, make_table, make_world, step_spans, token_times_s

# Four blocks of 4 tokens, steps of 1 s, one byte a token, a link of 4 bytes/s each way.
#
#  t   request 0 (prompt 4, answer 7)        request 1 (prompt 6, answer 6)
#  0   4 prompt tokens, block 1; token 1     6 prompt tokens, blocks 2 and 3; token 1
#  1   5th token, block 4; token 2           7th token; token 2
#  2   6th; token 3                          8th, which fills block 3; token 3
#  3   its 7th token waits for the copy      needs a third block: preempted, 8 tokens go to the host in 2 s
#  5   7th; token 4
#  6   8th; token 5                          finds its two blocks still cached, but no third one: waits
#  7   9th, takes block 3; token 6           finds block 2 and 4 tokens on the host, but no free block: waits
#  8   10th; token 7, its last               waits
#  9                                         block 2 is a hit, the other 4 tokens load in 1 s
# 10                                         9th; token 4
# 11                                         10th; token 5
# 12                                         11th; token 6, its last


@pytest.fixture
def world():
    world = make_world(
        make_table([0.0, 0.0], prompt=[4, 6], output=[7, 6]),
        FixedTimer(1.0),
        num_blocks=5,
        block_size=4,
        offload=OffloadSpec(bytes_per_token=1.0, bandwidth_bytes_per_s=4.0),
    )
    world.run()
    return world


def test_the_copy_out_holds_up_the_batch_that_takes_the_blocks_and_the_load_its_request(world):
    assert token_times_s(world, 0) == [1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0]
    assert token_times_s(world, 1) == [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]


def test_the_steps_show_the_two_pauses(world):
    starts = [start for start, _ in step_spans(world)]
    assert starts == [0.0, 1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 10.0, 11.0, 12.0]


def test_nothing_is_computed_twice_and_the_account_says_where_it_came_from(world):
    assert list(world.recorder.requests.recomputed_tokens) == [0, 0]
    account = world.replicas[0].engine.preemption_accounts.by_request[1]
    assert (account.num_lost_tokens, account.num_rehit_blocks, account.num_reloaded_tokens) == (8, 1, 4)


def test_bytes_on_the_link_are_those_of_the_tokens(world):
    offload = world.replicas[0]._connector
    assert (offload.out.num_bytes, offload.back.num_bytes) == (8.0, 4.0)
    assert (offload.out.busy_s, offload.back.busy_s) == (2.0, 1.0)


def test_the_stall_lasts_until_the_request_runs_again(world):
    assert list(world.recorder.requests.stalled_s) == [0.0, 7.0]


# --- the parts ----------------------------------------------------------------------------------------------


def test_transfers_on_a_link_go_one_after_another():
    link = Link(10.0)
    assert link.carry(1.0, 20.0) == 3.0
    assert link.carry(2.0, 10.0) == 4.0, "behind the first"
    assert link.carry(9.0, 10.0) == 10.0, "the link had been idle"
    assert (link.busy_s, link.num_bytes) == (4.0, 40.0)


def _victim(request_id: int, computed: int, tokens: int | None = None) -> Request:
    request = Request(request_id, ((1000 * request_id, tokens or computed + 1),), 10)
    request.num_computed_tokens = computed
    request.status = RequestStatus.PREEMPTED
    return request


def test_only_full_blocks_are_saved_and_a_second_time_only_what_is_new():
    offload = HostOffload(OffloadSpec(1.0, 1.0), block_size=4)
    request = _victim(1, computed=11)
    offload.before_preemption(request)
    assert offload.out.num_bytes == 8.0
    request.num_computed_tokens = 17
    request.num_tokens = 18
    offload.before_preemption(request)
    assert offload.out.num_bytes == 16.0
    assert offload.match(request, num_local_tokens=4).num_tokens == 12


def test_a_token_still_in_flight_is_not_known_and_not_saved():
    """Asynchronous scheduling counts it as computed; its block is complete only in name."""
    offload = HostOffload(OffloadSpec(1.0, 1.0), block_size=4)
    offload.before_preemption(_victim(1, computed=8, tokens=7))
    assert offload.out.num_bytes == 4.0


def test_the_copy_waits_for_the_batch_that_still_computes_the_kv():
    offload = HostOffload(OffloadSpec(1.0, 8.0), block_size=4)
    offload.now_s, offload.gpu_free_s = 3.0, 5.0
    offload.before_preemption(_victim(1, computed=8))
    assert offload.ready_s == 6.0


def test_what_does_not_fit_on_the_host_is_not_saved_and_comes_free_when_a_request_ends():
    offload = HostOffload(OffloadSpec(1.0, 1.0, capacity_bytes=20.0), block_size=4)
    first, second = _victim(1, computed=12), _victim(2, computed=12)
    offload.before_preemption(first)
    offload.before_preemption(second)
    assert offload.match(second, 0).num_tokens == 8, "two of three blocks"
    offload.delays_free(first)
    offload.before_preemption(second)
    assert offload.match(second, 0).num_tokens == 12


def test_two_loads_never_hold_blocks_at_the_same_time():
    offload = HostOffload(OffloadSpec(1.0, 1.0), block_size=4)
    first, second = _victim(1, computed=8), _victim(2, computed=8)
    for request in (first, second):
        offload.before_preemption(request)
    assert offload.match(first, 0) == (8, True)
    first.block_tables = [[1, 2]]
    first.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    offload.note_allocated(first, 8)
    assert offload.match(second, 0) is None, "not known yet: ask again"
    assert offload.match(_victim(3, computed=8), 0) == (0, False), "who has nothing to load may pass"
    offload.now_s = offload.load_ends_s
    offload.report()
    assert offload.match(_victim(3, computed=8), 0) is None, "now the loaded request must be reached"
    first.status = RequestStatus.RUNNING
    assert offload.match(second, 0) == (8, True)


def test_the_end_of_a_load_is_told_once():
    offload = HostOffload(OffloadSpec(1.0, 4.0), block_size=4)
    request = _victim(1, computed=8)
    offload.before_preemption(request)
    offload.note_allocated(request, 8)
    assert offload.load_ends_s == 4.0, "two seconds out, two seconds back"
    offload.now_s = 3.9
    assert offload.report() is None
    offload.now_s = 4.0
    assert offload.report().received == (1,)
    assert offload.report() is None
    assert offload.load_ends_s == inf


# --- whole runs ---------------------------------------------------------------------------------------------

WORK = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(0, 20)),
    min_size=1,
    max_size=8,
)


def play(work: list[tuple[int, int, float]], **knobs: object):
    work = sorted(work, key=lambda w: w[2])
    table = make_table([w[2] for w in work], [w[0] for w in work], [w[1] for w in work])
    world = make_world(table, FixedTimer(1.0), num_blocks=19, block_size=4, **knobs)
    world.run()
    return world


@settings(max_examples=40)
@given(
    work=WORK,
    bandwidth=st.sampled_from([0.5, 8.0, 1e9]),
    capacity=st.sampled_from([0.0, 30.0, inf]),
    asynchronous=st.booleans(),
    caching=st.booleans(),
    chunk=st.sampled_from([8, 64]),
    version=st.sampled_from(["0.16.0", "0.29.0", "0.33.0"]),
)
def test_whatever_the_link_everybody_is_served_in_full_and_the_host_is_empty_in_the_end(
    work: list,
    bandwidth: float,
    capacity: float,
    asynchronous: bool,
    caching: bool,
    chunk: int,
    version: str,
) -> None:
    world = play(
        work,
        offload=OffloadSpec(1.0, bandwidth, capacity),
        async_scheduling=asynchronous,
        caching=caching,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 64),
        release=release(version),
    )
    log = world.recorder.requests
    assert world.stuck is None
    assert set(log.status) <= {Status.FINISHED}
    offload = world.replicas[0]._connector
    assert offload._free_bytes == capacity
    assert not offload._saved_blocks
    reloaded = sum(
        account.num_reloaded_tokens
        for account in world.replicas[0].engine.preemption_accounts.by_request.values()
    )
    assert offload.back.num_bytes == reloaded


@settings(max_examples=30)
@given(work=WORK, asynchronous=st.booleans())
def test_without_host_memory_every_step_is_as_with_recomputation(work: list, asynchronous: bool) -> None:
    offloading = play(work, offload=OffloadSpec(1.0, 8.0, capacity_bytes=0.0), async_scheduling=asynchronous)
    recomputing = play(work, async_scheduling=asynchronous)
    for one, other in zip(
        offloading.recorder.steps[0].kept(), recomputing.recorder.steps[0].kept(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=30)
@given(work=WORK, caching=st.booleans())
def test_with_room_on_the_host_less_than_a_block_is_computed_again_at_each_preemption(
    work: list, caching: bool
) -> None:
    world = play(work, offload=OffloadSpec(1.0, 1e9), caching=caching)
    log = world.recorder.requests
    for i in range(len(work)):
        assert log.recomputed_tokens[i] <= 4 * log.num_preemptions[i]
