"""Machines that are not as shipped, and recordings that simulated engines on them leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cost_models import DecodeRun, StepCost, StepCostModel, StepShape
from sim.evidence.own_machine import OwnMachine, fit_machine, recorded_engine
from sim.recordings import load_recording
from sim.scenario import Scenario, scenario_from_data
from sim.setup import EngineSetup
from sim.simulation import simulate


@dataclass
class Noise:
    """Times of the GPU that come out longer or shorter: by `size` (relative, normal), neighbours alike by
    `memory` (0: none alike), and `hiccups` of the steps by `hiccup_s` longer.
    """

    seed: int = 0
    size: float = 0.02
    memory: float = 0.9
    hiccups: float = 0.003
    hiccup_s: float = 0.1
    _last: float = 0.0
    _draws: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._draws = np.random.default_rng(self.seed)
        self._last = self._draws.standard_normal()

    def of(self, cost: StepCost) -> StepCost:
        fresh = float(self._draws.standard_normal())
        self._last = self.memory * self._last + (1.0 - self.memory**2) ** 0.5 * fresh
        factor = float(np.exp(self.size * self._last))
        late_s = self.hiccup_s if self._draws.random() < self.hiccups else 0.0
        stage_s = cost.stage_s * factor + late_s
        return StepCost(cost.gpu_s * factor + late_s, cost.host_s, cost.bound, stage_s)


class NoisyTimer:
    """A cost model with noise on it."""

    def __init__(self, timer: StepCostModel, noise: Noise) -> None:
        self._timer, self._noise = timer, noise

    def step(self, shape: StepShape) -> StepCost:
        return self._noise.of(self._timer.step(shape))

    def decode_step(self, count: int, context_tokens: int, longest: int) -> StepCost:
        return self._noise.of(self._timer.decode_step(count, context_tokens, longest))

    def decode_run(self, count: int, context_tokens: int, longest: int, num_steps: int) -> DecodeRun:
        raise NotImplementedError("recorded runs go step by step")


LOAD = {
    "kind": "poisson",
    "rate_per_s": 4.0,
    "num_requests": 150,
    "lengths": {
        "kind": "lognormal",
        "prompt": {"mean": 900.0, "sigma": 0.9, "max": 6000},
        "output": {"mean": 150.0, "sigma": 0.7, "max": 600},
    },
}


def machine_file(folder: Path, gpu: str, machine: Mapping[str, float]) -> Path:
    """The calibration file of a machine with these constants."""
    path = folder / "machine.json"
    header = {"id": "altered", "gpu": gpu, "source": "made up", "date": "2026-12-01"}
    path.write_text(json.dumps({**header, "machine": dict(machine)}), encoding="utf-8")
    return path


def engine_on(
    folder: Path,
    machine: Mapping[str, float],
    *,
    model: str = "meta-llama/Llama-3.1-8B",
    gpu: str = "h100-sxm",
    workload: Mapping[str, object] | None = None,
    seed: int = 1,
    **engine: object,
) -> Scenario:
    """An engine on a machine with these constants."""
    return scenario_from_data(
        {
            "model": model,
            "gpu": gpu,
            "seed": seed,
            "calibration": str(machine_file(folder, gpu, machine)),
            "engine": {"max_model_len": 8192, **engine},
            "workload": {**LOAD, **(workload or {})},
        }
    )


def record(scenario: Scenario, path: Path, noise: Noise | None = None) -> Path:
    """A recording of a run of the scenario, with noise on its times."""

    def noisy(_: Scenario, setup: EngineSetup) -> EngineSetup:
        assert isinstance(setup.replica.timer, StepCostModel)
        if noise is None:
            return setup
        return replace(setup, replica=replace(setup.replica, timer=NoisyTimer(setup.replica.timer, noise)))

    simulate(scenario, change=noisy, record=path)
    return path


def fitted_to(path: Path) -> OwnMachine:
    """What the recording says of its machine."""
    recording = load_recording(path)
    return fit_machine([recording], recorded_engine([recording]), date="2026-12-01")
