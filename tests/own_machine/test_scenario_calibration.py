"""A scenario may name a calibration file of one machine; its steps then take that machine's times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models import (
    CalibrationError,
    Deployment,
    Parallelism,
    StepCostModel,
    StepShape,
    calibration,
    load_calibration,
)
from sim.errors import InputError
from sim.jobs.store import point_key
from sim.scenario import Scenario, load_scenario
from sim.simulation import simulate

SCENARIO = """\
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
calibration: mine.json
engine: {async_scheduling: false}
workload:
  kind: closed_loop
  max_concurrency: 8
  num_requests: 16
  lengths: {kind: fixed, prompt_tokens: 200, output_tokens: 50}
"""
DECODES = StepShape(8, 8, 8 * 1000, 1000, (), (), 8, 8)
PREFILL = StepShape(4096, prefill_chunks=((4096, 0),), num_sampled=1, num_requests=1)


def write_calibration(folder: Path, machine: object, gpu: str = "h100-sxm") -> Path:
    """A calibration file of a machine that takes its operators from those shipped."""
    path = folder / "mine.json"
    header = {"id": "mine", "gpu": gpu, "source": "a recording", "date": "2026-12-01"}
    path.write_text(json.dumps({**header, "machine": machine}), encoding="utf-8")
    return path


def scenario_in(folder: Path, *overrides: str) -> Scenario:
    path = folder / "mine.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return load_scenario(path, overrides)


def test_a_run_takes_the_times_of_the_calibration_that_its_scenario_names(tmp_path: Path) -> None:
    write_calibration(tmp_path, {"step_host_s": 0.011, "memory_gain": 0.5})
    mine = simulate(scenario_in(tmp_path))
    shipped = simulate(scenario_in(tmp_path, "calibration=null"))
    more_s = mine.summary["mean_tpot_ms"] - shipped.summary["mean_tpot_ms"]  # type: ignore[operator]
    # 10 ms of host time more, and 16 GB of weights at half of 3.35 TB/s: some 5 ms more
    assert 14.0 < more_s < 17.0
    assert mine.summary["calibration_id"] == "mine"
    assert "step_host_s, memory_gain: as one machine has them (a recording)" in mine.setup.notes
    assert len(mine.steps) == len(shipped.steps)


def test_constants_that_a_machine_has_not_shown_are_as_shipped_and_named_as_borrowed(tmp_path: Path) -> None:
    fitted = load_calibration(write_calibration(tmp_path, {"compute_gain": 0.9}))
    assert fitted.machine.fitted == ("compute_gain",)
    assert fitted.borrowed["machine.memory_gain"] == "h100-sxm"
    assert fitted.borrowed["machine.step_host_s"] == "engine release"
    assert "machine.compute_gain" not in fitted.borrowed
    assert fitted.gemm == calibration("h100-sxm").gemm


def test_each_constant_moves_its_own_kind_of_work_and_no_other(tmp_path: Path) -> None:
    deployment = Deployment.of("meta-llama/Llama-3.1-8B", "h100-sxm")
    shipped = StepCostModel(deployment)

    def ratio(machine: dict[str, float], shape: StepShape) -> float:
        mine = StepCostModel(deployment, fitted=load_calibration(write_calibration(tmp_path, machine)))
        return mine.step(shape).gpu_s / shipped.step(shape).gpu_s

    assert ratio({"memory_gain": 0.5}, DECODES) > 1.6
    assert ratio({"memory_gain": 0.5}, PREFILL) < 1.2
    assert ratio({"compute_gain": 0.5}, PREFILL) > 1.7
    assert ratio({"compute_gain": 0.5}, DECODES) < 1.1
    assert ratio({"all_reduce_gain": 0.5}, DECODES) == 1.0
    assert ratio({}, DECODES) == 1.0


def test_half_the_speed_of_all_reduce_doubles_the_time_of_communication(tmp_path: Path) -> None:
    deployment = Deployment.of("meta-llama/Llama-3.1-70B", "h100-sxm", tensor(4))
    path = write_calibration(tmp_path, {"all_reduce_gain": 0.5})
    shipped, mine = (
        StepCostModel(deployment, fitted=f).terms(DECODES) for f in (None, load_calibration(path))
    )
    assert mine["comm"] == pytest.approx(2.0 * shipped["comm"], rel=1e-12)
    assert {name: mine[name] for name in mine if name != "comm"} == {
        name: shipped[name] for name in shipped if name != "comm"
    }


def tensor(size: int) -> Parallelism:
    return Parallelism(size)


def test_what_is_wrong_with_the_file_is_said_at_the_line_that_names_it(tmp_path: Path) -> None:
    write_calibration(tmp_path, {}, gpu="a100-sxm-80gb")
    with pytest.raises(
        InputError, match=r"mine.yaml:3:1: calibration: mine.json is of a100-sxm-80gb, not of"
    ):
        scenario_in(tmp_path)
    with pytest.raises(InputError, match=r"calibration: gone.json.*No such file"):
        scenario_in(tmp_path, "calibration=gone.json")


def test_constants_that_no_machine_has_are_refused_all_at_once(tmp_path: Path) -> None:
    path = write_calibration(tmp_path, {"memory_gain": 0.0, "step_host_s": "1 ms", "magic": 1.0})
    with pytest.raises(CalibrationError) as caught:
        load_calibration(path)
    told = str(caught.value)
    assert "memory_gain: must be from 0.05 to 20, not 0" in told
    assert "step_host_s: must be a number" in told
    assert "magic: unknown" in told


def test_a_stored_result_is_not_found_again_once_the_calibration_has_changed(tmp_path: Path) -> None:
    write_calibration(tmp_path, {"memory_gain": 0.9})
    before = point_key(scenario_in(tmp_path))
    write_calibration(tmp_path, {"memory_gain": 0.85})
    assert point_key(scenario_in(tmp_path)) != before
