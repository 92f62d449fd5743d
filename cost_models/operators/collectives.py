"""Communication between the GPUs of one engine: latency plus bytes over a share of the link."""

from __future__ import annotations

import numpy as np

from cost_models.calibration import AllReduceParams, NcclParams, SendRecvParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats

CUSTOM_ALL_REDUCE_LIMIT_BYTES = float(8 << 20)
_BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}


def custom_all_reduce_s(message_bytes: Floats, gpus: Floats, gpu: Gpu, params: AllReduceParams) -> Floats:
    """One-shot, n-1 messages to each GPU, or two-shot, 2(n-1)/n of them in two steps: whichever is quicker.

    alpha + alpha_n · n + bytes on the wire / (link · efficiency); link is one direction. Formula of alpha-
    beta models (Hockney 1994; Thakur et al. 2005), parameters fitted.
    """
    link = gpu.link_bytes_per_s
    one = params.one_shot_s + params.one_shot_per_gpu_s * gpus
    one = one + (gpus - 1.0) * message_bytes / (link * params.one_shot_efficiency)
    two = params.two_shot_s + params.two_shot_per_gpu_s * gpus
    two = two + 2.0 * (gpus - 1.0) / gpus * message_bytes / (link * params.two_shot_efficiency)
    return np.minimum(one, two)


def nccl_s(operation: str, message_bytes: Floats, gpus: Floats, gpu: Gpu, params: NcclParams) -> Floats:
    """NCCL: low-latency or ring protocol, whichever is quicker; (n-1)/n of the message, twice for an all-
    reduce.
    """
    wire = _BUS_FACTOR[operation] * (gpus - 1.0) / gpus * message_bytes / gpu.link_bytes_per_s
    low = params.ll_s + params.ll_per_gpu_s * gpus + wire / params.ll_efficiency
    ring = params.ring_s + params.ring_per_gpu_s * gpus + wire / params.ring_efficiency
    return np.minimum(low, ring)


def all_reduce_s(
    message_bytes: Floats, gpus: Floats, gpu: Gpu, custom: AllReduceParams, nccl: NcclParams
) -> Floats:
    """What the engine uses: its own kernels up to 8 MB, NCCL above. 0 for one GPU."""
    small = custom_all_reduce_s(message_bytes, gpus, gpu, custom)
    large = nccl_s("all_reduce", message_bytes, gpus, gpu, nccl)
    both = np.where(message_bytes <= CUSTOM_ALL_REDUCE_LIMIT_BYTES, small, large)
    return np.where(gpus > 1.0, both, 0.0)


def send_recv_s(message_bytes: Floats, params: SendRecvParams, *, between_nodes: bool = False) -> Floats:
    """Seconds to pass `message_bytes` to the next pipeline stage: alpha + bytes / bandwidth."""
    if between_nodes:
        return params.inter_s + message_bytes / params.inter_bytes_per_s
    return params.intra_s + message_bytes / params.intra_bytes_per_s
