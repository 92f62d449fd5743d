"""Laws of every run: nobody is lost, nothing comes before its time, the same seed gives the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import InvariantError
from sim.cluster.recorder import Status
from tests.cluster.helpers import FixedTimer, make_table, make_world, times_of, token_times_s

REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 150), st.integers(1, 40), st.booleans()),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60)
@given(
    requests=REQUESTS,
    asynchronous=st.booleans(),
    ignore_eos=st.booleans(),
    stages=st.integers(1, 3),
    replicas=st.integers(1, 2),
    cap=st.none() | st.integers(1, 6),
    horizon=st.none() | st.integers(1, 60),
    num_blocks=st.integers(12, 40),
)
def test_every_request_ends_once_and_every_token_has_its_time(
    requests, asynchronous, ignore_eos, stages, replicas, cap, horizon, num_blocks
):
    """The world checks its laws after every step (`check=True`); here we look at what it left behind."""
    requests = sorted(requests)
    arrival, prompt, output, refused = (list(column) for column in zip(*requests, strict=True))
    table = make_table(arrival, prompt, output, rejected=np.flatnonzero(refused))
    world = make_world(
        table,
        FixedTimer(lambda shape: 0.1 + 0.01 * shape.num_tokens, host_s=0.02, num_stages=stages),
        max_concurrency=cap,
        ignore_eos=ignore_eos,
        num_replicas=replicas,
        num_blocks=num_blocks,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        async_scheduling=asynchronous,
    )
    end_s = world.run(horizon_s=horizon)
    log, times = world.recorder.requests, times_of(world, end_s)
    status = np.array(log.status)
    if horizon is None:
        assert set(status) <= {Status.FINISHED, Status.REJECTED}
    assert (status[np.flatnonzero(refused)] != Status.FINISHED).all()
    for i in range(len(requests)):
        tokens = token_times_s(world, i)
        assert len(tokens) == log.output_tokens[i]
        assert tokens == sorted(set(tokens))
        assert all(t >= log.arrival_s[i] + 0.1 for t in tokens[:1])
        if status[i] == Status.FINISHED:
            assert len(tokens) == min(output[i], world._most_tokens - prompt[i])
    assert (times.arrival_s[status != Status.NOT_SENT] >= np.array(arrival)[status != Status.NOT_SENT]).all()


def test_the_checks_can_fail():
    """A check that nothing can break would prove nothing: here a request is made to look late."""
    world = make_world(make_table([0.0, 0.0], output=3))
    client = world._clients._generators[0]
    send = client._send_request

    def late(request_id: int, due_s: float) -> None:
        send(request_id, due_s)
        world.recorder.requests.arrival_s[request_id] = 5.0

    client._send_request = late
    with pytest.raises(InvariantError, match="before arrival"):
        world.run()


def test_no_token_is_shown_before_its_step_has_ended():
    """Token times are end times of steps that scheduled the request."""
    world = make_world(make_table([0.0, 0.3, 0.7], prompt=[90, 5, 40], output=[5, 9, 2]), FixedTimer(0.25))
    world.run()
    ends = set(world.recorder.steps[0].end_s().tolist())
    for i in range(3):
        assert set(token_times_s(world, i)) <= ends


def test_a_closed_loop_keeps_exactly_its_concurrency_in_flight():
    """From the first send until the last, at every moment between two events; then it drains."""
    n, users = 40, 5
    world = make_world(
        make_table(np.zeros(n), prompt=20, output=[1 + i % 7 for i in range(n)]),
        FixedTimer(1.0),
        max_concurrency=users,
    )
    world.run()
    times = times_of(world)
    moments = np.unique(np.concatenate([times.arrival_s, times.last_token_s]))
    between = (moments[1:] + moments[:-1]) / 2
    last_send_s = times.arrival_s.max()
    for t in between[between < last_send_s]:
        assert ((times.arrival_s <= t) & (times.last_token_s > t)).sum() == users


def test_a_client_side_cap_holds_requests_back_and_counts_no_latency_for_it():
    """Two at t = 0, one slot: the second leaves the client when the first has ended, at 1 s."""
    world = make_world(make_table([0.0, 0.0]), FixedTimer(1.0), max_concurrency=1)
    world.run()
    log = world.recorder.requests
    assert log.arrival_s[1] == 1.0
    assert log.client_queue_s[1] == 1.0
    assert times_of(world).ttft_s.tolist() == [1.0, 1.0]


def test_decode_speed_does_not_depend_on_the_pool_while_nobody_is_preempted():
    """The step times that the cost model is asked for are the same with 600 blocks and with 60,000."""
    table = make_table(np.arange(50) * 0.1, prompt=64, output=30)
    shapes = []
    for num_blocks in (600, 60_000):
        timer = FixedTimer(0.05)
        world = make_world(table, timer, num_blocks=num_blocks)
        world.run()
        assert sum(world.recorder.requests.num_preemptions) == 0
        shapes.append(timer.shapes)
    assert shapes[0] == shapes[1]
