"""The memory-bound rest: norms, rope, activation, residual, sampling."""

from __future__ import annotations

from cost_models.calibration import SmallOpParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import pnorm


def small_op_s(moved_bytes: float, gpu: Gpu, params: SmallOpParams) -> float:
    """Seconds of one elementwise kernel: pnorm(floor, bytes / (bw · efficiency))."""
    return pnorm(params.floor_s, moved_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency), params.exponent)
