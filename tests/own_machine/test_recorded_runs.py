"""A simulated run can be recorded as a real engine's is; the run is the same, and the recording tells it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_models import calibration
from cost_models.machine import AS_SHIPPED
from sim.evidence.own_machine import recorded_engine
from sim.evidence.own_machine.predicted import Predictor
from sim.evidence.own_machine.steps import seconds_of, timed_steps
from sim.evidence.recorded import conform_recordings
from sim.recordings import load_recording
from sim.scenario import load_scenario
from sim.setup import step_timers
from sim.simulation import simulate
from tests.cli.helpers import SCENARIO, dryserve
from tests.own_machine.machines import engine_on

SPACED = (
    "quickstart",
    [
        "cluster.replicas=1",
        "workload.duration_s=10",
        "engine.pipeline_parallel_size=2",
        "engine.version=0.33.0",
    ],
)
"""A pipeline that spaces the decodes of a request."""
SCENARIOS = [
    ("quickstart", ["cluster.replicas=1", "workload.duration_s=10"]),
    ("quickstart", ["cluster.replicas=1", "workload.duration_s=10", "engine.async_scheduling=false"]),
    ("quickstart", ["cluster.replicas=1", "workload.duration_s=10", "engine.pipeline_parallel_size=2"]),
    SPACED,
    ("kv-starved", ["workload.num_requests=60"]),
    ("speculative", ["workload.num_requests=40"]),
    ("impatient-clients", ["workload.num_requests=100"]),
    ("shared-prefix", ["workload.duration_s=5", "cluster.replicas=1"]),
]


@pytest.mark.parametrize(("name", "overrides"), SCENARIOS)
def test_a_recorded_run_is_the_same_and_its_recording_has_every_step(
    name: str, overrides: list[str], tmp_path: Path
) -> None:
    scenario = load_scenario(name, overrides)
    plain, recorded = simulate(scenario), simulate(scenario, record=tmp_path / "run.jsonl.gz")
    assert recorded.summary == plain.summary
    assert recorded.steps.equals(plain.steps)
    recording = load_recording(tmp_path / "run.jsonl.gz")
    assert recording.ending == "the run ended"
    steps = [step for step in recording.steps if step.request_ids]  # an engine also plans empty ones
    assert len(steps) == len(plain.steps)
    columns = ["decode_tokens", "prefill_tokens", "recompute_tokens"]
    tokens = [sum(step.num_scheduled_tokens) for step in steps]
    assert tokens == plain.steps[columns].sum(axis=1).tolist()
    ends_s = [step.update_start_s for step in steps]
    assert np.allclose(np.array(ends_s, dtype=np.float64), plain.steps["end_s"], rtol=0, atol=1e-6)
    done = [request for request in recording.requests if request.finish_reason in ("stop", "length")]
    assert len(done) == plain.summary["completed"]
    assert sum(request.num_outputs for request in done) == plain.summary["total_output_tokens"]


@pytest.mark.parametrize(("name", "overrides"), SCENARIOS)
def test_times_predicted_for_the_steps_of_a_recording_are_those_that_were_simulated(
    name: str, overrides: list[str], tmp_path: Path
) -> None:
    scenario = load_scenario(name, overrides)
    simulate(scenario, record=tmp_path / "run.jsonl.gz")
    recording = load_recording(tmp_path / "run.jsonl.gz")
    engine = recorded_engine([recording], scenario=scenario)
    steps = timed_steps(recording)
    predictor = Predictor(steps, calibration(engine.gpu), lambda fitted: step_timers(engine, fitted))
    errors_s = predictor.seconds(AS_SHIPPED) - seconds_of(steps)
    assert len(steps) == sum(bool(step.request_ids) for step in recording.steps)
    # Times are recorded in microseconds. Where a step waited for its tokens, the one behind it may enter the
    # first stage later than is told from the recording.
    exact = np.abs(errors_s) < 2.5e-6
    assert exact.mean() > 0.98 if (name, overrides) == SPACED else exact.all()


@pytest.mark.parametrize(("name", "overrides"), SCENARIOS)
def test_a_recorded_run_replays_identically(name: str, overrides: list[str], tmp_path: Path) -> None:
    simulate(load_scenario(name, overrides), record=tmp_path / "run.jsonl.gz")
    assert conform_recordings([tmp_path / "run.jsonl.gz"]).passed


def test_equal_runs_leave_equal_recordings_and_replicas_one_each(tmp_path: Path) -> None:
    scenario = load_scenario("quickstart", ["cluster.replicas=2", "workload.duration_s=5"])
    for folder in ("first", "second"):
        simulate(scenario, record=tmp_path / folder / "run.jsonl.gz")
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == ["run-0.jsonl.gz", "run-1.jsonl.gz"]
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_the_command_records_a_run_under_its_laws(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    done = dryserve(
        *("run", "small.yaml", "--no-report", "--check", "--record", "small.jsonl.gz"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    recording = load_recording(tmp_path / "small.jsonl.gz")
    assert recording.settings.model == "meta-llama/Llama-3.1-8B"
    assert recording.settings.gpu == "h100-sxm"
    assert len(recording.requests) == 40


def test_a_recording_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    done = dryserve("run", "small.yaml", "--no-report", "--record", "taken/r.jsonl.gz", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: taken/r.jsonl.gz")
    assert "Traceback" not in done.stderr


def test_a_recorded_machine_is_found_again_in_the_settings(tmp_path: Path) -> None:
    scenario = engine_on(tmp_path, {}, tensor_parallel_size=2, async_scheduling=False, max_num_seqs=64)
    simulate(scenario, record=tmp_path / "run.jsonl.gz")
    engine = recorded_engine([load_recording(tmp_path / "run.jsonl.gz")])
    assert engine.gpu == "h100-sxm"
    assert engine.engine.tensor_parallel_size == 2
    assert engine.engine.max_num_seqs == 64
    assert engine.engine.async_scheduling is False
