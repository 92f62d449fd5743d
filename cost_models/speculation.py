"""Speculative decoding: what drafting and verifying cost on top of a step's own shape."""

from __future__ import annotations

from cost_models.shapes import StepCost, StepShape
from cost_models.step_cost import StepCostModel


def speculative_step(
    target: StepCostModel, shape: StepShape, num_drafts: int, draft: StepCostModel | None = None
) -> StepCost:
    """Cost of verifying `shape` on the target model and of drafting `num_drafts` tokens a request for the
    next step.

    `shape` counts 1 + drafts tokens for every decode, all of them sampled (the verification reads each
    context once). A draft model decodes num_drafts times in a row, one token each; an EAGLE-like head is a
    draft model of one layer. Without a draft model (n-gram lookup) drafting is host work that a step's host
    time includes.
    """
    verified = target.step(shape)
    if draft is None or num_drafts < 1 or not shape.num_decodes:
        return verified
    one = draft.decode_step(
        shape.num_decodes,
        shape.decode_context_tokens,
        shape.max_decode_context_tokens,
        shape.window_context_tokens,
    )
    gpu_s = verified.gpu_s + num_drafts * one.gpu_s
    return StepCost(gpu_s, verified.host_s, verified.bound, verified.stage_s + num_drafts * one.gpu_s)
