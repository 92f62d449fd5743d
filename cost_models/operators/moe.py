"""Mixture-of-experts blocks: which experts a batch touches, and how long their weights and products take."""

from __future__ import annotations

import numpy as np

from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm
from cost_models.parameters import MoeParams

TILE_ROWS = 64.0


def experts_touched(tokens: Floats, experts: float, top_k: float) -> Floats:
    """Expected distinct experts when each token picks `top_k` of `experts` at random: E · (1 - (1 -
    k/E)^tokens).
    """
    return np.asarray(experts * -np.expm1(tokens * np.log1p(-min(top_k / experts, 1.0 - 1e-12))))


def expert_loads(tokens: float, experts: int, top_k: int, exponent: float) -> Floats:
    """Rows of each expert, least popular first, when popularity follows a power law x^-exponent on [1,
    0.8·tokens].

    The quantiles of that law, scaled to tokens · top_k rows in all and to at most one row a token: the load
    that the public MoE measurements call `power_law_<exponent>`.
    """
    quantiles = (np.arange(experts) + 0.5) / experts
    top = max(0.8 * tokens, 1.0001)
    power = 1.0 - exponent
    weights = (quantiles * (top**power - 1.0) + 1.0) ** (1.0 / power)
    return np.asarray(np.minimum(weights / weights.sum() * tokens * top_k, tokens))


def moe_s(
    tokens: Floats,
    local_rows: Floats,
    local_experts: Floats,
    num_experts: Floats,
    hidden: Floats,
    intermediate: Floats,
    top_k: Floats,
    gpu: Gpu,
    params: MoeParams,
    *,
    weight_bytes: float = 2.0,
    compute: str = "bf16",
) -> Floats:
    """Seconds of one fused block (gate-up, activation, down, weighted sum) on one GPU, elementwise.

    local_rows: (token, expert) pairs of this GPU; local_experts: experts it touches; intermediate: per GPU.
    t = t0 + pnorm((rows + padding·64·experts) · 6·h·(I + prologue) / (peak·ec), experts·3·h·I·w / (bw·em),
    p) + tokens·top_k·2·(3·I·a + h·b) / bw: every GPU passes all pairs through activation and sum, its own
    or not.
    """
    rows = local_rows + params.padding * TILE_ROWS * local_experts
    flops = rows * 6.0 * hidden * (intermediate + params.prologue_elements)
    compute_s = flops / (gpu.peak_flop_per_s(compute) * params.compute_efficiency)
    weights = local_experts * 3.0 * hidden * intermediate * weight_bytes
    memory_s = weights / (gpu.memory_bytes_per_s * params.memory_efficiency)
    memory_s = memory_s * np.where(tokens > num_experts, params.wide_slowdown, 1.0)
    row_bytes = 2.0 * (3.0 * intermediate * params.activation_passes + hidden * params.hidden_passes)
    io_s = tokens * top_k * row_bytes / gpu.memory_bytes_per_s
    return params.t0_s + pnorm(compute_s, memory_s, params.exponent) + io_s
