"""A run in which nobody gets any further ends, says why, and keeps what came before."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cluster.recorder import Status
from sim.scenario import load_scenario
from sim.simulation import RunResult, simulate
from tests.cli.helpers import dryserve
from tests.cluster.helpers import FixedTimer, make_table, make_world

TURNS = """\
# Two prompts of 18 blocks each in a cache of 20, computed a block at a time.
name: turns
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine:
  max_model_len: 320
  num_gpu_blocks_override: 21
  max_num_seqs: 4
  max_num_batched_tokens: 32
  long_prefill_token_threshold: 16
  enable_prefix_caching: false
  victim_policy: {kind: most_blocks_freed}
workload:
  kind: burst
  num_requests: 2
  lengths: {kind: fixed, prompt_tokens: 288, output_tokens: 4}
"""


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    path = tmp_path / "turns.yaml"
    path.write_text(TURNS, encoding="utf-8")
    return path


def stopped(path: Path, *overrides: str) -> RunResult:
    return simulate(load_scenario(path, overrides))


def test_two_prompts_that_preempt_each_other_in_turns_are_a_livelock(turns: Path) -> None:
    """Whoever has more blocks is the victim, so neither ever gets to 18."""
    result = stopped(turns)
    assert result.stuck is not None
    assert result.summary["progress"] == result.stuck.kind == "livelock"
    assert result.summary["num_in_flight"] == 2
    assert result.notes[0].startswith("the run was ended by a livelock in replica 0: ")
    assert "request 0 (288 tokens) lost its blocks " in result.stuck.reason
    assert result.notes[1].startswith("the end at ")


@pytest.mark.parametrize("victim", ["fcfs_tail", "least_computed", "fewest_generated"])
def test_other_policies_serve_both(turns: Path, victim: str) -> None:
    result = stopped(turns, f"engine.victim_policy.kind={victim}")
    assert result.stuck is None
    assert result.summary["num_finished"] == 2


def test_the_command_says_so_writes_what_there_is_and_exits_with_1(turns: Path) -> None:
    done = dryserve("run", "turns.yaml", "--no-report", cwd=turns.parent)
    assert done.returncode == 1
    assert "error: the run was ended by a livelock in replica 0" in done.stderr
    (folder,) = (turns.parent / "runs").iterdir()
    assert (folder / "summary.json").is_file()


def test_a_deadlock_ends_the_run_and_names_who_cannot_be_admitted_and_why() -> None:
    """Prompts must not be cut, and the second is longer than a step; the first has been served by then."""
    world = make_world(
        make_table([0.0, 5.0, 6.0], prompt=[20, 100, 20], output=2),
        FixedTimer(1.0),
        max_num_batched_tokens=64,
        enable_chunked_prefill=False,
    )
    end_s = world.run()
    assert end_s == 5.0
    assert world.stuck is not None
    assert str(world.stuck) == (
        "deadlock in replica 0: request 1 at the head of the waiting queue needs more than the 64 tokens of "
        "a step, and prompts must not be cut; 999 blocks are free"
    )
    assert list(world.recorder.requests.status) == [Status.FINISHED, Status.IN_FLIGHT, Status.NOT_SENT]


def test_one_stuck_replica_ends_the_run_of_the_fleet_at_once() -> None:
    world = make_world(
        make_table([0.0, 0.0], prompt=[20, 100], output=50),
        FixedTimer(1.0),
        num_replicas=2,
        max_num_batched_tokens=64,
        enable_chunked_prefill=False,
    )
    assert world.run() == 0.0
    assert world.stuck is not None
    assert world.stuck.replica == 1
