"""The memory-bound rest: norms, rope, activation, residual, embedding, sampling."""

from __future__ import annotations

from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm
from cost_models.parameters import SmallOpParams

# Passes of 16-bit rows of the operator's width through memory: operands read plus results written.
PASSES = {
    "emb": 2.0,
    "input_layernorm": 2.0,
    "post_attention_layernorm": 2.0,
    "add": 3.0,
    "attn_rope": 2.0,
    "mlp_act": 3.0,
}


def small_op_s(moved_bytes: Floats, gpu: Gpu, params: SmallOpParams) -> Floats:
    """Seconds of one elementwise kernel: pnorm(floor, bytes / (bw · efficiency), p), elementwise."""
    stream_s = moved_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency)
    return pnorm(stream_s, 0.0 * stream_s + params.floor_s, params.exponent)
