"""Matrix products: linear layers, and blocks of experts, of which a batch touches some; and the
communication between GPUs that makes one product of their parts.

A product is tiles in waves over the SMs against one pass over the operands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.calibration import AllReduceParams, GemmParams, MoeParams, NcclParams, SendRecvParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm

# Output tiles that the vendor libraries ship for 16-bit products, and the split-K factors they try.
_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_CANDIDATES = np.array([(*tile, split) for tile in _TILES for split in _SPLITS], dtype=np.float64).T
_LARGEST_TILE = (256.0, 128.0)
_STRETCH = 64  # As many rows as the smallest tile: blocks of counts begin where one does.
_ROUNDING = 1.0 + 1e-9  # More than rounding can part two times that are equal.


class GemmTime(NamedTuple):
    """Seconds per product beyond `t0_s`, and whether arithmetic (rather than memory) limits it."""

    work_s: Floats
    compute_bound: Floats


def gemm_time(
    m: Floats,
    n: Floats,
    k: Floats,
    gpu: Gpu,
    params: GemmParams,
    *,
    weight_bytes: float = 2.0,
    compute: str = "bf16",
    l2_reuse: bool = False,
    least_tile_rows: Floats | float = 0.0,
) -> GemmTime:
    """Time of C[m,n] = A[m,k] · B[k,n] beyond the kernel's fixed time, elementwise over arrays of shape
    (rows,).

    For a tile of r x c outputs and split-K s: waves w = ceil(m/r)·ceil(n/c)·s / SMs; a wave takes
    2·r·c·(k/s + prologue) / (peak/SMs · ec · eff), eff = r·c / (r·c + edge·(r + c)) relative to the largest
    tile; memory takes (m·k·a + k·n·weight_bytes + 2·m·n) / (bw · em) with a = 1 for 8-bit activations, else
    2. Split-K adds a reduction and its partial sums, and a block a serial time for each of its
    K elements. Of tiles of at least `least_tile_rows`, that with the
    smallest pnorm(waves, memory) is taken, as a library's heuristic would.
    Textbook tile and wave quantisation (NVIDIA, Matrix Multiplication Background user's guide), parameters
    fitted. `l2_reuse`: operands that fit into L2 are read faster, as when one product is timed over and
    over; in serving, a whole model passes through L2 between two uses of a weight.
    """
    work_s, compute_s, memory_s = _candidates_s(
        _CANDIDATES[..., None], m, n, k, gpu, params, weight_bytes, compute, l2_reuse, least_tile_rows
    )
    return _best(work_s, compute_s, memory_s, params.quantize_passes * m * k / gpu.memory_bytes_per_s)


def rising_gemm_time(
    m: Floats,
    n: Floats,
    k: Floats,
    gpu: Gpu,
    params: GemmParams,
    *,
    weight_bytes: float,
    compute: str,
    least_tile_rows: Floats,
) -> GemmTime:
    """`gemm_time` of each (n, k) with all m, shape (layers, rows), where m rises as `least_tile_rows` does:
    the same to the last bit, and quicker.

    No candidate gets quicker as m grows. So in a stretch of m, one that takes longer at its beginning than
    another at its end is the best nowhere in it.
    """
    n, k = n[:, None], k[:, None]
    alike = n, k, gpu, params, weight_bytes, compute, False
    first = np.arange(0, len(m), _STRETCH)
    last = np.minimum(first + (_STRETCH - 1), len(m) - 1)
    ends = np.concatenate([first, last])
    at_ends_s, _, _ = _candidates_s(_CANDIDATES[..., None, None], m[ends], *alike, least_tile_rows[ends])
    beaten = at_ends_s[..., : len(first)] > _ROUNDING * at_ends_s[..., len(first) :].min(axis=0)
    most_left = len(beaten) - beaten.sum(axis=0).min()
    left = np.argsort(beaten, axis=0, kind="stable")[:most_left]
    candidates = _CANDIDATES[:, left].repeat(_STRETCH, axis=-1)[..., : len(m)]
    work_s, compute_s, memory_s = _candidates_s(candidates, m, *alike, least_tile_rows)
    return _best(work_s, compute_s, memory_s, params.quantize_passes * m * k / gpu.memory_bytes_per_s)


def _candidates_s(
    candidates: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    gpu: Gpu,
    params: GemmParams,
    weight_bytes: float,
    compute: str,
    l2_reuse: bool,
    least_tile_rows: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of the products, of their arithmetic, and of passing memory. `candidates`: tile rows, tile
    columns and split, each of shape (candidates, 1 or as many as there are products).
    """
    activation_bytes = 1.0 if compute in ("fp8", "int8", "fp4") else 2.0
    peak = gpu.peak_flop_per_s(compute)
    moved_bytes = activation_bytes * m * k + weight_bytes * n * k + 2.0 * m * n
    memory_s = moved_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency)
    if l2_reuse:
        kept = np.clip(1.0 - moved_bytes / (params.l2_fraction * gpu.l2_bytes), 0.0, 1.0)
        memory_s = memory_s / (1.0 + (params.l2_speedup - 1.0) * kept)
    ideal_s = 2.0 * m * n * k / peak
    speed = 1.0 - params.throttle * ideal_s / (ideal_s + params.throttle_s)
    rows, cols, split = candidates
    area = rows * cols
    relative = (
        area / (area + params.edge_elements * (rows + cols)) / _largest_tile_efficiency(params.edge_elements)
    )
    waves = np.ceil(m / rows) * np.ceil(n / cols) * split / gpu.sm_count
    quantization = params.wave_quantization
    waves = (1.0 - quantization) * np.maximum(waves, 1.0) + quantization * np.ceil(waves)
    wave_s = 2.0 * area * (k / split + params.prologue_elements) * gpu.sm_count
    compute_s = waves * wave_s / (peak * params.compute_efficiency * relative * speed)
    work_s = pnorm(compute_s, np.broadcast_to(memory_s, compute_s.shape), params.exponent)
    partial_sums_s = 4.0 * params.split_passes * m * n * split / gpu.memory_bytes_per_s
    work_s = work_s + np.where(split > 1.0, params.split_s + partial_sums_s, 0.0)
    work_s = work_s + params.element_s * k / split
    return np.where(rows >= least_tile_rows, work_s, np.inf), compute_s, memory_s


def _best(work_s: Floats, compute_s: Floats, memory_s: Floats, quantize_s: Floats) -> GemmTime:
    """The quickest candidate of each product."""
    best = np.argmin(work_s, axis=0)[None]
    chosen_s, arithmetic_s = (np.take_along_axis(each_s, best, axis=0)[0] for each_s in (work_s, compute_s))
    return GemmTime(chosen_s + quantize_s, (arithmetic_s > memory_s).astype(np.float64))


def _largest_tile_efficiency(edge_elements: float) -> float:
    rows, cols = _LARGEST_TILE
    return rows * cols / (rows * cols + edge_elements * (rows + cols))


def gemm_s(
    m: Floats,
    n: Floats,
    k: Floats,
    gpu: Gpu,
    params: GemmParams,
    *,
    weight_bytes: float = 2.0,
    compute: str = "bf16",
    l2_reuse: bool = False,
) -> Floats:
    """Whole seconds of the products, fixed time included; arguments as for `gemm_time`."""
    time = gemm_time(m, n, k, gpu, params, weight_bytes=weight_bytes, compute=compute, l2_reuse=l2_reuse)
    return params.t0_s + time.work_s


def gemm_datasheet_s(
    m: Floats, n: Floats, k: Floats, gpu: Gpu, *, weight_bytes: float, compute: str
) -> Floats:
    """The roofline that no product beats: max(FLOPs / peak, bytes / bandwidth) at datasheet figures."""
    moved_bytes = weight_bytes * (m * k + n * k) + 2.0 * m * n
    return np.maximum(2.0 * m * n * k / gpu.peak_flop_per_s(compute), moved_bytes / gpu.memory_bytes_per_s)


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
