"""Communication between the GPUs of one engine."""

from __future__ import annotations

from cost_models.calibration import AllReduceParams, SendRecvParams
from cost_models.gpus import Gpu

CUSTOM_ALL_REDUCE_LIMIT_BYTES = 8 << 20


def all_reduce_s(message_bytes: float, gpus: int, gpu: Gpu, params: AllReduceParams) -> float:
    """Seconds to sum `message_bytes` over `gpus`: the better of one-shot and two-shot up to 8 MB, NCCL above.

    One-shot sends (n-1)·bytes, two-shot and ring send 2·(n-1)/n·bytes, each at a fraction of one-direction link speed.
    """
    if gpus <= 1 or message_bytes <= 0:
        return 0.0
    link = gpu.link_bytes_per_s
    ring_bytes = 2.0 * (gpus - 1) / gpus * message_bytes
    if message_bytes <= CUSTOM_ALL_REDUCE_LIMIT_BYTES:
        one = params.one_shot_s + params.one_shot_per_gpu_s * gpus
        one += (gpus - 1) * message_bytes / (link * params.one_shot_efficiency)
        two = params.two_shot_s + params.two_shot_per_gpu_s * gpus + ring_bytes / (link * params.two_shot_efficiency)
        return min(one, two)
    low_latency = params.ll_s + params.ll_per_gpu_s * gpus + ring_bytes / (link * params.ll_efficiency)
    ring = params.ring_s + params.ring_per_gpu_s * gpus + ring_bytes / (link * params.ring_efficiency)
    return min(low_latency, ring)


def send_recv_s(message_bytes: float, params: SendRecvParams, *, between_nodes: bool = False) -> float:
    """Seconds to pass `message_bytes` to the next pipeline stage."""
    if between_nodes:
        return params.inter_s + message_bytes / params.inter_bytes_per_s
    return params.intra_s + message_bytes / params.intra_bytes_per_s
