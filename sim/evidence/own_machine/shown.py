"""Which constants of a machine a recording shows at all, and why not the others.

What a recording does not show would be made up by a fit, and believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from cost_models import Deployment
from cost_models.machine import Machine
from sim.evidence.own_machine.predicted import Predictor
from sim.evidence.own_machine.steps import TimedStep
from sim.values import Floats, Ints

LEAST_STEPS: Final = 200
"""Fewer steps with times say nothing about a machine."""
LEAST_OF_KIND: Final = 50
"""Fewer steps of the kind that shows a constant do not show it."""
LEAST_SHARE: Final = 0.2
"""A step shows the speed of arithmetic if that is at least such a share of its time."""
LEAST_COMM_SHARE: Final = 0.02
"""The same of all-reduces, which are everywhere."""
LEAST_SPREAD: Final = 1.5
"""Batch sizes are several if the 95th percentile is so many times the 5th."""

CONSTANTS: Final = (
    "step_host_s",
    "step_gap_s",
    "request_host_s",
    "memory_gain",
    "compute_gain",
    "all_reduce_gain",
)


def reasons_not_to_fit(deployment: Deployment, predictor: Predictor, machine: Machine) -> dict[str, str]:
    """By constant, why these steps do not show it if the machine is about as `machine` says; constants that
    they show are not in it.
    """
    steps = predictor.steps
    if len(steps) < LEAST_STEPS:
        few = f"{len(steps)} steps with times to fit to; {LEAST_STEPS} are the fewest"
        return dict.fromkeys(CONSTANTS, few)
    gpu_shows, shares = predictor.gpu_shows(machine), _shares(predictor, machine)
    seen = [step for step, shows in zip(steps, gpu_shows, strict=True) if shows]
    reasons: dict[str, str | None] = {
        **_host_reasons(deployment, predictor, machine, seen),
        "memory_gain": _decode_reason(steps, seen),
        "compute_gain": None,
        "all_reduce_gain": None,
    }
    busy = int((gpu_shows & (shares["compute"] >= LEAST_SHARE)).sum())
    if busy < LEAST_OF_KIND:
        reasons["compute_gain"] = (
            f"{_steps(busy)} with at least {LEAST_SHARE:.0%} of the time in arithmetic (long prefills); "
            f"{LEAST_OF_KIND} are the fewest"
        )
    if deployment.parallel.tensor == 1:
        reasons["all_reduce_gain"] = "tensor parallel size 1: there are no all-reduces"
    elif (waits := int((gpu_shows & (shares["comm"] >= LEAST_COMM_SHARE)).sum())) < LEAST_OF_KIND:
        reasons["all_reduce_gain"] = f"{_steps(waits)} with {LEAST_COMM_SHARE:.0%} of the time in all-reduces"
    return {name: reason for name in CONSTANTS if (reason := reasons[name]) is not None}


def _steps(count: int) -> str:
    return {0: "no step", 1: "one step"}.get(count, f"only {count} steps")


def _shares(predictor: Predictor, machine: Machine) -> Mapping[str, Floats]:
    terms = predictor.terms(machine)
    total = sum(seconds for name, seconds in terms.items() if name != "host")
    return {name: np.asarray(seconds / total) for name, seconds in terms.items()}


def _host_reasons(
    deployment: Deployment, predictor: Predictor, machine: Machine, seen: Sequence[TimedStep]
) -> dict[str, str | None]:
    """Host times: what is added to every step, and what shows only where the GPU waits for the host."""
    steps = predictor.steps
    constant = _decode_reason(steps, seen)
    waiting = [step for step, shows in zip(steps, predictor.host_shows(machine), strict=True) if shows]
    requests = np.array([step.shape.num_requests for step in waiting])
    if not deployment.async_scheduling:
        one = "without asynchronous scheduling it adds to every step as step_host_s does, which has both"
        per_request = _spread_reason(requests, "steps")
        return {"step_host_s": constant, "step_gap_s": one, "request_host_s": per_request}
    if len(waiting) < LEAST_OF_KIND:
        hidden = (
            f"the host works while the GPU does, and {_steps(len(waiting))} waited for it; "
            f"{LEAST_OF_KIND} are the fewest"
        )
        return {"step_host_s": hidden, "step_gap_s": constant, "request_host_s": hidden}
    spread = _spread_reason(requests, "steps that wait for the host")
    return {"step_host_s": None, "step_gap_s": constant, "request_host_s": spread}


def _decode_reason(steps: Sequence[TimedStep], seen: Sequence[TimedStep]) -> str | None:
    """Why decodes do not tell what every step takes from what reading weights and KV takes. `seen` are the
    steps that are as long as the GPU takes.
    """
    batches = np.array([step.shape.num_decodes for step in seen if step.is_decode_only])
    apart = "so a fixed time of each step cannot be told from the time to read weights"
    if len(batches) < LEAST_OF_KIND:
        hidden = any(step.is_decode_only for step in steps) and len(seen) < len(steps)
        but = " that do not wait for the host" if hidden else ""
        return f"{_steps(len(batches))} of decodes alone{but} ({LEAST_OF_KIND} are the fewest); {apart}"
    reason = _spread_reason(batches, "steps of decodes alone")
    return None if reason is None else f"{reason}; {apart}"


def _spread_reason(counts: Ints, of: str) -> str | None:
    low, high = np.percentile(counts, [5, 95])
    if high >= LEAST_SPREAD * low:
        return None
    sizes = f"batch size {low:.0f}" if low == high else f"batch sizes from {low:.0f} to {high:.0f} alone"
    return f"{of} have {sizes}"
