"""Constants of a machine come back out of recordings of engines on it, and what is not shown is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sim.evidence.own_machine import OwnMachine
from tests.own_machine.machines import Noise, engine_on, fitted_to, record

SYNC, AHEAD = {"async_scheduling": False}, {"async_scheduling": True}
TENSOR = {"async_scheduling": False, "tensor_parallel_size": 4}
ALL_SYNC = {"step_host_s": 2.5e-3, "request_host_s": 2e-5, "memory_gain": 0.9, "compute_gain": 0.85}
ALL_AHEAD = {"step_gap_s": 1e-3, "memory_gain": 0.92, "compute_gain": 1.1}

MACHINES: list[tuple[str, Mapping[str, float], Mapping[str, object], dict[str, str]]] = [
    ("host of a step", {"step_host_s": 2e-3}, SYNC, {}),
    ("host of a request", {"request_host_s": 3e-5}, SYNC, {}),
    ("memory", {"memory_gain": 0.85}, AHEAD, {}),
    ("arithmetic", {"compute_gain": 0.8}, AHEAD, {}),
    ("gap", {"step_gap_s": 8e-4}, AHEAD, {}),
    ("all-reduces", {"all_reduce_gain": 0.6}, TENSOR, {}),
    ("all of a synchronous engine", ALL_SYNC, SYNC, {}),
    ("all that scheduling ahead shows", ALL_AHEAD, AHEAD, {}),
    ("four GPUs", {**ALL_SYNC, "all_reduce_gain": 0.7}, TENSOR, {}),
    ("another GPU", ALL_SYNC, SYNC, {"gpu": "a100-sxm-80gb"}),
    ("another model", ALL_AHEAD, AHEAD, {"model": "Qwen/Qwen3-14B"}),
]


def constants_of(found: OwnMachine) -> dict[str, float]:
    return {each.name: each.estimate.value for each in found.fitted if each.estimate}


def reasons_of(found: OwnMachine) -> dict[str, str]:
    return {each.name: each.reason for each in found.constants if each.reason}


@pytest.mark.parametrize(("machine", "engine", "named"), [each[1:] for each in MACHINES], ids=lambda _: "")
def test_constants_come_back_from_a_recording_without_noise(
    machine: Mapping[str, float], engine: Mapping[str, object], named: dict[str, str], tmp_path: Path
) -> None:
    scenario = engine_on(tmp_path, machine, **named, **engine)  # type: ignore[arg-type]
    found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz"))
    values = constants_of(found)
    assert values.keys() >= machine.keys()
    for constant in found.fitted:
        true = machine.get(constant.name, constant.shipped)
        assert values[constant.name] == pytest.approx(true, rel=0.005, abs=2e-7)
    assert found.errors()[-1].after_p90 < 0.1


@pytest.mark.parametrize(
    ("machine", "engine"),
    [(ALL_SYNC, SYNC), (ALL_AHEAD, AHEAD), ({**ALL_SYNC, "all_reduce_gain": 0.7}, TENSOR)],
)
def test_intervals_hold_the_constants_when_steps_are_noisy_and_some_take_far_too_long(
    machine: Mapping[str, float], engine: Mapping[str, object], tmp_path: Path
) -> None:
    scenario = engine_on(tmp_path, machine, workload={"num_requests": 400}, **engine)
    noise = Noise(seed=5, size=0.02, memory=0.8, hiccups=0.01, hiccup_s=0.2)
    found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz", noise))
    for constant in found.fitted:
        true = machine.get(constant.name, constant.shipped)
        assert constant.estimate is not None
        # one and a half times as wide: one in twenty lies outside of its own interval
        reach = 1.5 * max(constant.estimate.high - constant.estimate.value, constant.estimate.half_width)
        assert abs(constant.estimate.value - true) < reach, constant.name
    assert 0.003 * found.num_fitted < found.num_outliers < 0.04 * found.num_fitted
    last = found.errors()[-1]
    assert last.after_median < 2.0 < 8.0 < last.before_median
    assert abs(last.after_bias) < 0.5


def test_a_host_slower_than_the_gpu_is_found_behind_it(tmp_path: Path) -> None:
    machine = {"step_host_s": 9e-3, "request_host_s": 5e-5, "memory_gain": 0.92}
    found = fitted_to(record(engine_on(tmp_path, machine, **AHEAD), tmp_path / "run.jsonl.gz", Noise()))
    values = constants_of(found)
    assert values["step_host_s"] == pytest.approx(9e-3, rel=1e-3)
    assert values["request_host_s"] == pytest.approx(5e-5, rel=1e-2)
    # all decodes wait for the host, so nothing shows how quick the memory is
    assert "no step of decodes alone that do not wait for the host" in reasons_of(found)["memory_gain"]
    assert "memory_gain" not in values


def test_what_scheduling_ahead_hides_is_left_as_it_was(tmp_path: Path) -> None:
    found = fitted_to(record(engine_on(tmp_path, {}, **AHEAD), tmp_path / "run.jsonl.gz"))
    for name in ("step_host_s", "request_host_s"):
        assert "the host works while the GPU does" in reasons_of(found)[name]
    assert reasons_of(found)["all_reduce_gain"] == "tensor parallel size 1: there are no all-reduces"


def test_one_batch_size_leaves_host_time_and_memory_as_they_were(tmp_path: Path) -> None:
    load = {
        "kind": "closed_loop",
        "max_concurrency": 8,
        "num_requests": 64,
        "rate_per_s": None,
        "lengths": {"kind": "fixed", "prompt_tokens": 3000, "output_tokens": 300},
    }
    scenario = engine_on(tmp_path, {"step_host_s": 3e-3, "compute_gain": 0.8}, workload=load, **SYNC)
    found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz"))
    for name in ("step_host_s", "memory_gain"):
        reason = reasons_of(found)[name]
        assert reason.startswith("steps of decodes alone have batch size 8; so a fixed time of each step")
    assert "request_host_s" in reasons_of(found)


def test_without_decodes_alone_the_memory_is_left_as_it_was(tmp_path: Path) -> None:
    load = {"lengths": {"kind": "uniform", "prompt_tokens": [200, 4000], "output_tokens": [1, 1]}}
    machine = {"compute_gain": 0.8}
    workload = {"num_requests": 900, "rate_per_s": 8.0, **load}
    scenario = engine_on(tmp_path, machine, workload=workload, **SYNC)
    found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz"))
    assert reasons_of(found)["memory_gain"].startswith("no step of decodes alone")
    assert constants_of(found)["compute_gain"] == pytest.approx(0.8, rel=0.01)


def test_too_few_steps_fit_nothing(tmp_path: Path) -> None:
    scenario = engine_on(tmp_path, {}, workload={"num_requests": 2})
    found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz"))
    assert found.has_failed
    assert all("200 are the fewest" in reason for reason in reasons_of(found).values())
    assert len(reasons_of(found)) == 6


def test_pipelines_and_drafts_are_fitted_too(tmp_path: Path) -> None:
    drafts = {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 0.7}
    for engine in ({**AHEAD, "pipeline_parallel_size": 2}, {**SYNC, "speculative_config": drafts}):
        scenario = engine_on(tmp_path, {"compute_gain": 0.8}, **engine)
        found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz"))
        assert constants_of(found)["compute_gain"] == pytest.approx(0.8, rel=0.01)
        assert found.errors()[-1].after_p90 < 0.2
