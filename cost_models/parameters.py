"""Fitted parameters, one dataclass per operator. All times in seconds, efficiencies as fractions of
datasheet peak.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GemmParams:
    """Matrix product: see `operators.gemm`.

    edge_elements: how fast a tile loses efficiency as it shrinks. prologue_elements: K elements that
    filling the pipeline costs. split_s, split_passes: fixed time of
    the reduction after split-K, and how often its 32-bit partial sums pass through memory. element_s:
    serial time of a block for each of its K elements. wave_quantization: 0 = waves count in fractions, 1 =
    rounded up.
    throttle: share of compute speed lost to the power limit in long products, half of it at throttle_s of
    work.
    quantize_passes: times that an m·k operand passes through memory to be quantised.
    l2_fraction, l2_speedup: reuse of operands that fit into L2, which serving does not see.
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    edge_elements: float = 0.0
    prologue_elements: float = 0.0
    split_s: float = 0.0
    split_passes: float = 0.0
    element_s: float = 0.0
    wave_quantization: float = 0.0
    throttle: float = 0.0
    throttle_s: float = 1.0
    quantize_passes: float = 0.0
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """Decode attention: see `operators.decode`.

    cold_s: delay of a KV read that misses L2. wave_s: one wave of thread blocks; group_cost: its growth per
    8 query heads sharing a KV head. combine_s: merging split KV. reorder_s: copy of the output where a
    grouped kernel needs one. block_bandwidth: what one unsplit thread block streams, in shares of bandwidth
    / SM; split_bandwidth: what all the splits of one sequence and KV head together do. tail: weight of the
    last, partly filled wave.
    splits_mha: False where a kernel never splits the KV of a model without grouped heads (FlashAttention-2).
    l2_fraction, l2_speedup: reuse of a buffer that fits into L2, which serving does not see.
    """

    t0_s: float
    memory_efficiency: float
    exponent: float
    cold_s: float
    wave_s: float
    group_cost: float
    combine_s: float
    split_bandwidth: float
    reorder_s: float = 0.0
    block_bandwidth: float = 0.0
    tail: float = 0.0
    splits_mha: bool = True
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefillParams:
    """Prefill attention: see `operators.prefill`.

    tile_rows: query rows of a thread block; packs_heads: whether the query heads of a group share those rows.
    prologue_tokens: KV tokens that starting a block costs. exponent joins throughput and the longest block,
    io_exponent joins those with memory. kv_write_efficiency and kv_write_head_s: writing new keys and
    values, per byte and per token and KV head (up to 4).
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    io_exponent: float
    prologue_tokens: float
    wave_quantization: float
    kv_write_efficiency: float
    kv_write_head_s: float
    tile_rows: int = 128
    packs_heads: bool = False
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class SmallOpParams:
    """One elementwise kernel: pnorm(floor_s, bytes / (bandwidth · memory_efficiency), exponent)."""

    floor_s: float
    memory_efficiency: float
    exponent: float


@dataclass(frozen=True, slots=True)
class AllReduceParams:
    """All-reduce of the engine: one-shot or two-shot kernels up to 8 MB; see `operators.collectives`."""

    one_shot_s: float
    one_shot_per_gpu_s: float
    one_shot_efficiency: float
    two_shot_s: float
    two_shot_per_gpu_s: float
    two_shot_efficiency: float


@dataclass(frozen=True, slots=True)
class NcclParams:
    """A collective of NCCL: the better of a low-latency and a ring protocol; see `operators.collectives`."""

    ll_s: float
    ll_per_gpu_s: float
    ll_efficiency: float
    ring_s: float
    ring_per_gpu_s: float
    ring_efficiency: float


@dataclass(frozen=True, slots=True)
class SendRecvParams:
    """Point-to-point transfer: alpha + bytes / bandwidth, within a node and between nodes."""

    intra_s: float
    intra_bytes_per_s: float
    inter_s: float
    inter_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class MoeParams:
    """Fused mixture-of-experts block: see `operators.moe`.

    padding: share of a 64-row tile wasted per expert touched. prologue_elements: as for GEMM, on the
    intermediate size. activation_passes, hidden_passes: times that intermediate and hidden rows pass
    through memory. skew: how much of the expected imbalance between expert-parallel ranks is seen.
    wide_slowdown: factor on weight reads once there are more tokens than experts.
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    padding: float
    prologue_elements: float
    activation_passes: float
    hidden_passes: float
    skew: float
    wide_slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What only a whole model shows, since single operators are measured alone, warm and unfused.

    launch_gap_s: share of a stand-alone attention launch that vanishes in a model's own stream of kernels.
    graph_floor_s: shortest elementwise kernel in a captured graph. fused_memory_efficiency: bandwidth of
    fused elementwise kernels. fp8_kv_efficiency: speed of streaming fp8 KV over 16-bit KV, a byte.
    `serving` has what differs by GPU part beyond that.
    """

    launch_gap_s: float
    graph_floor_s: float
    fused_memory_efficiency: float
    fp8_kv_efficiency: float = 1.0
