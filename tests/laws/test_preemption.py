"""Metrics right across a preemption: a pool of four blocks, two requests, every number worked out by hand."""

from __future__ import annotations

import pytest

from sim.cluster.recorder import Status
from tests.cluster.helpers import FixedTimer, make_table, make_world, step_spans, times_of, token_times_s

# Four blocks of 4 tokens can be held (the fifth is the null block), each step takes 1 s, no token is shared.
#
# step  request 0 (prompt 4, answer 7)       request 1 (prompt 6, answer 6)
#  0    4 prompt tokens, block 1; token 1    6 prompt tokens, blocks 2 and 3; token 1
#  1    5th token needs a block: 4; token 2  7th token; token 2
#  2    6th; token 3                         8th, which fills block 3; token 3
#  3    7th; token 4                         9th needs a block and none is free: the last of the running list
#                                            loses its blocks, and that is request 1 itself
#  4    8th, which fills block 4; token 5    9 tokens need 3 blocks; its two are still cached: both are hits,
#                                            but a third is not there: it waits
#  5    9th needs a block and takes the one  waits
#       freed first, the tail: 3; token 6
#  6    10th; token 7, its last              waits
#  7                                         finds block 2 (4 tokens), computes the 5th to 9th; token 4
#  8                                         10th; token 5
#  9                                         11th; token 6, its last


@pytest.fixture
def world():
    world = make_world(
        make_table([0.0, 0.0], prompt=[4, 6], output=[7, 6]), FixedTimer(1.0), num_blocks=5, block_size=4
    )
    world.run()
    return world


def test_tokens_before_and_after_a_preemption_keep_their_times(world):
    assert token_times_s(world, 0) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert token_times_s(world, 1) == [1.0, 2.0, 3.0, 8.0, 9.0, 10.0]


def test_ttft_is_the_first_token_ever_shown_and_tpot_includes_the_stall(world):
    times = times_of(world)
    assert times.ttft_s.tolist() == [1.0, 1.0]
    assert times.tpot_s.tolist() == [1.0, pytest.approx(9.0 / 5)]


def test_the_preempted_request_counts_its_tokens_once(world):
    log = world.recorder.requests
    assert list(log.status) == [Status.FINISHED] * 2
    assert list(log.output_tokens) == [7, 6]


def test_the_stall_lasts_from_the_preemption_to_the_step_that_resumes(world):
    """Preempted when step 3 is scheduled, at 3 s; scheduled again at 7 s. Tokens 5 to 8 are computed
    twice.
    """
    log = world.recorder.requests
    assert list(log.num_preemptions) == [0, 1]
    assert list(log.stalled_s) == [0.0, 4.0]
    assert list(log.recomputed_tokens) == [0, 4]


def test_the_steps_tell_decode_from_recompute(world):
    _, _, counts = world.recorder.steps[0].kept()
    decode, prefill, recompute = counts[:, 0], counts[:, 1], counts[:, 2]
    assert decode.tolist() == [0, 2, 2, 1, 1, 1, 1, 0, 1, 1]
    assert prefill.tolist() == [10, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert recompute.tolist() == [0, 0, 0, 0, 0, 0, 0, 4, 0, 0]
    assert counts[:, 7].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert step_spans(world)[-1] == (9.0, 10.0)
