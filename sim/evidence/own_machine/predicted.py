"""How long the cost model says that recorded steps take, on a machine with given constants.

Each step is predicted from where the engine really stood when it began. With c its seconds on the GPU, h on
the host and e how much earlier the host could begin, it takes max(h + c - e, c), and at least until the host
has prepared the next step, if that is in flight already. In a pipeline it takes at least the time of a stage,
and its decodes wait for tokens of a step in flight. The simulated engine does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isinf
from typing import Final

import numpy as np

from cost_models import Calibration, StepCostModel, engine_profile
from cost_models.machine import Machine
from sim.cluster.model_runner import DraftModel
from sim.evidence.own_machine.steps import TimedStep
from sim.values import Bools, Floats

_LITTLE_S: Final = 1e-5

Timers = tuple[StepCostModel, DraftModel | None]


@dataclass(frozen=True)
class Predictor:
    """Predicts the steps of one engine. `timers` makes its cost model, and that of its drafter if it has
    one, with a calibration.
    """

    steps: Sequence[TimedStep]
    fitted: Calibration
    timers: Callable[[Calibration], Timers]

    def of(self, steps: Sequence[TimedStep]) -> Predictor:
        """The same engine with other steps."""
        return replace(self, steps=steps)

    def seconds(self, machine: Machine) -> Floats:
        """The time of each step on a machine with these constants."""
        timer, drafter = self.timers(replace(self.fitted, machine=machine))
        # host times change no kernel
        gpu = replace(machine, step_host_s=None, request_host_s=None, fitted=())
        if gpu not in self._on_gpu:
            self._on_gpu.clear()
            self._on_gpu[gpu] = _on_gpu_s(timer, drafter, self.steps)
        gpu_s, stage_s = self._on_gpu[gpu]
        requests, lead_s, next_requests, next_lead_s = self._columns
        step_host_s, request_host_s = timer.host_s(0), timer.host_s(1) - timer.host_s(0)
        ready_s = np.maximum(step_host_s + requests * request_host_s + gpu_s - lead_s, stage_s)
        return np.asarray(np.maximum(ready_s, step_host_s + next_requests * request_host_s - next_lead_s))

    @cached_property
    def _on_gpu(self) -> dict[Machine, tuple[Floats, Floats]]:
        """The latest GPU times: the host's constants are tried without them."""
        return {}

    @cached_property
    def _columns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """By step: its requests, by how much the host leads, and the same of the step in flight behind it; if
        there is none the host waits for nothing.
        """
        rows = [
            (
                float(step.shape.num_requests),
                step.host_lead_s,
                float(step.next_requests),
                inf if isinf(step.next_lead_s) else step.next_lead_s,
            )
            for step in self.steps
        ]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        return columns[0], columns[1], columns[2], columns[3]

    def terms(self, machine: Machine) -> dict[str, Floats]:
        """By step the seconds of each term: compute, weights, kv, comm, latency, host."""
        timer, _ = self.timers(replace(self.fitted, machine=machine))
        rows = [timer.terms(step.shape) for step in self.steps]
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def host_shows(self, machine: Machine) -> Bools:
        """By step, whether a little more host time makes it longer."""
        return self._lengthened(machine, "step_host_s")

    def gpu_shows(self, machine: Machine) -> Bools:
        """By step, whether a little more time on the GPU makes it longer."""
        return self._lengthened(machine, "step_gap_s")

    def _lengthened(self, machine: Machine, name: str) -> Bools:
        profile = engine_profile(self.timers(self.fitted)[0].deployment.engine_version)
        before_s = getattr(machine.profile(profile), name)
        longer = replace(machine, **{name: before_s + _LITTLE_S})
        return np.asarray(self.seconds(longer) - self.seconds(machine) > _LITTLE_S / 2)


def _on_gpu_s(
    timer: StepCostModel, drafter: DraftModel | None, steps: Sequence[TimedStep]
) -> tuple[Floats, Floats]:
    """By step, the seconds on the GPU through all stages, and the least time after the step before it."""
    rows = []
    for step in steps:
        cost = timer.step(step.shape)
        draft_s = 0.0 if drafter is None else drafter.draft_s(step.shape, *step.drafting)
        gpu_s = cost.gpu_s + draft_s
        rows.append((gpu_s, max(cost.stage_s + draft_s, gpu_s - step.token_lead_s)))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return columns[0], columns[1]
