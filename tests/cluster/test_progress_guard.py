"""A run that gets nowhere stops with a diagnosis in place of spinning."""

from __future__ import annotations

import pytest

from scheduler import SchedulerConfig
from sim.cluster.clock import ProgressGuard, StuckError
from tests.cluster.helpers import make_table, make_world


def test_a_deadlock_is_diagnosed_at_once():
    """Chunked prefill off and a prompt above the budget: the head can never be scheduled, nobody passes
    it."""
    world = make_world(
        make_table([0.0, 0.0], prompt=[100, 10]), max_num_batched_tokens=64, enable_chunked_prefill=False
    )
    assert world.run() == 0.0
    assert str(world.stuck).startswith(
        "deadlock in replica 0: request 0 at the head of the waiting queue needs more than the 64 tokens"
    )


def test_a_livelock_is_diagnosed_after_far_more_steps_than_the_longest_prompt_needs():
    """4,096 tokens in chunks of 64 are 64 steps; ten times that and 1,000 are allowed without a token."""
    world = make_world(make_table([0.0]))
    guard = ProgressGuard(SchedulerConfig(max_num_batched_tokens=64, max_model_len=4096))
    engine = world.replicas[0].engine
    for _ in range(1640):
        guard.on_step(engine, gave_tokens=False)
    with pytest.raises(StuckError, match="livelock in replica 0: 1641 steps"):
        guard.on_step(engine, gave_tokens=False)


def test_a_token_resets_the_count():
    guard = ProgressGuard(SchedulerConfig(max_num_batched_tokens=64, max_model_len=4096))
    engine = make_world(make_table([0.0])).replicas[0].engine
    for i in range(5000):
        guard.on_step(engine, gave_tokens=i % 1500 == 0)


def test_a_pool_that_thrashes_still_ends():
    """Forty requests in a pool for three: preemptions without end in sight, but everybody finishes."""
    world = make_world(
        make_table([0.0] * 40, prompt=60, output=60),
        num_blocks=25,
        max_num_batched_tokens=32,
        max_num_seqs=40,
    )
    world.run()
    assert sum(world.recorder.requests.num_preemptions) > 40
    assert sum(world.recorder.requests.output_tokens) == 40 * 60
