"""Costs of decode steps in a row are those of the single steps, to the last bit."""

from __future__ import annotations

import pytest

from cost_models import BOUNDS, Deployment, Parallelism, StepCost, StepCostModel


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        ("meta-llama/Llama-3.1-8B", Parallelism()),
        ("meta-llama/Llama-3.1-70B", Parallelism(tensor=4, pipeline=2)),
        ("google/gemma-3-27b-it", Parallelism()),
    ],
)
def test_a_run_of_decode_steps_costs_what_its_steps_cost(
    model: str, parallel: Parallelism, ahead: bool
) -> None:
    timer = StepCostModel(Deployment.of(model, "h100-sxm", parallel, async_scheduling=ahead))
    for decodes, context, longest in [(1, 5, 5), (7, 30_000, 9_000), (256, 700_000, 4_001)]:
        run = timer.decode_run(decodes, context, longest, 300)
        for i, (gpu_s, stage_s, bound) in enumerate(zip(run.gpu_s, run.stage_s, run.bounds, strict=True)):
            step = timer.decode_step(decodes, context + i * decodes, longest + i)
            assert step == StepCost(gpu_s, run.host_s, BOUNDS[bound], stage_s)
