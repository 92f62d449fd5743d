"""The soft maximum that all operators share, and the memory-bound kernels that need nothing else.

Those are norms, rope, activation, residual, embedding and sampling.
"""

from __future__ import annotations

from math import pow
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import SmallOpParams
from cost_models.gpus import Gpu

Floats: TypeAlias = NDArray[np.float64]


def pnorm(a: Floats, b: Floats, exponent: float) -> Floats:
    """Soft maximum (a^p + b^p)^(1/p), elementwise: a + b at p = 1, max(a, b) as p grows. Needs a, b >= 0.

    Scaled by the larger operand, so that microseconds to the tenth power do not underflow.
    """
    top = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.where(top > 0.0, top, 1.0)
    return np.asarray(top * (1.0 + ratio**exponent) ** (1.0 / exponent), dtype=np.float64)


def soft_max(a: float, b: float, exponent: float) -> float:
    """`pnorm` of two plain numbers, for the path taken once a step: `pow` is `**` for floats alone."""
    if a < b:
        a, b = b, a
    if b <= 0.0:
        return a
    return a * pow(1.0 + pow(b / a, exponent), 1.0 / exponent)


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
