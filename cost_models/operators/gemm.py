"""Matrix products: the linear layers of the model."""

from __future__ import annotations

from cost_models.calibration import GemmParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import pnorm
from cost_models.shapes import Seconds


def gemm(
    m: int, n: int, k: int, gpu: Gpu, params: GemmParams, *, weight_bytes: float = 2.0, compute: str = "bf16"
) -> Seconds:
    """Seconds of C[m,n] = A[m,k] · B[k,n] with B a weight of `weight_bytes` bytes an element.

    t0 + pnorm(2·m·n·k / (peak · ec), (m·k·a + k·n·w + m·n·2) / (bw · em), p) with `a` = 1 byte for fp8 and int8
    activations, else 2; + quantisation of the activations where the parameters have it. The time beyond t0 counts
    as compute or as weights, whichever limit is the larger.
    """
    if m <= 0:
        return Seconds()
    activation_bytes = 1.0 if compute in ("fp8", "int8") else 2.0
    compute_s = 2.0 * m * n * k / (gpu.peak_flop_per_s(compute) * params.compute_efficiency)
    moved_bytes = activation_bytes * m * k + weight_bytes * n * k + 2.0 * m * n
    memory_s = moved_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency)
    work_s = pnorm(compute_s, memory_s, params.exponent)
    work_s += params.quantize_bytes * m * k / gpu.memory_bytes_per_s
    if compute_s > memory_s:
        return Seconds(compute=work_s, latency=params.t0_s)
    return Seconds(weights=work_s, latency=params.t0_s)
