"""Attention: prefill chunks over their prefix, and decode over the KV cache."""

from __future__ import annotations

import math

from cost_models.calibration import DecodeParams, PrefillParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import pnorm


def prefill_flops(chunk: int, prefix: int, heads: int, qk_dim: int, v_dim: int, window: int | None = None) -> float:
    """FLOPs of causal attention of `chunk` new tokens behind `prefix` old ones: 2·heads·(qk+v)·q·(prefix + q/2)."""
    pairs = chunk * (prefix + 0.5 * chunk)
    if window is not None:
        pairs = min(pairs, float(chunk) * window)
    return 2.0 * heads * (qk_dim + v_dim) * pairs


def prefill_attention_s(
    flops: float, moved_bytes: float, kv_tokens: float, gpu: Gpu, params: PrefillParams
) -> float:
    """Seconds of one layer's prefill attention beyond its fixed time: pnorm(compute, memory)."""
    efficiency = params.compute_efficiency * kv_tokens / (kv_tokens + params.half_kv_tokens)
    compute_s = flops / (gpu.bf16_flop_per_s * efficiency)
    memory_s = moved_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency)
    return pnorm(compute_s, memory_s, params.exponent)


def decode_attention_s(kv_bytes: float, num_ctas: float, gpu: Gpu, params: DecodeParams) -> float:
    """Seconds of one layer's decode attention beyond its fixed time: pnorm(KV read, CTA waves)."""
    if num_ctas <= 0:
        return 0.0
    waves_s = math.ceil(num_ctas / gpu.sm_count) * params.wave_s
    return pnorm(kv_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency), waves_s, params.exponent)
