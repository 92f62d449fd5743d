"""Where a parameter starts and how far it may go: physical bounds (start, low, high) in seconds and
shares.
"""

from __future__ import annotations

US = 1e-6
Bounds = tuple[float, float, float]

EXPONENT: Bounds = (2.0, 0.7, 12.0)
GEMM_BOUNDS: dict[str, Bounds] = {
    "t0_s": (3 * US, 0.0, 20 * US),
    "compute_efficiency": (0.8, 0.1, 1.0),
    "memory_efficiency": (0.8, 0.1, 1.0),
    "exponent": (2.5, 0.7, 20.0),
    "edge_elements": (15.0, 0.0, 200.0),
    "prologue_elements": (120.0, 0.0, 1000.0),
    "split_s": (2 * US, 0.0, 10 * US),
    "split_passes": (0.5, 0.0, 5.0),
    "element_s": (0.1e-9, 0.0, 5e-9),
    "wave_quantization": (0.3, 0.0, 1.0),
    "throttle": (0.05, 0.0, 0.4),
    "throttle_s": (500 * US, 100 * US, 0.1),
    "l2_fraction": (0.3, 0.05, 1.0),
    "l2_speedup": (1.5, 1.0, 10.0),
}
DECODE_BOUNDS: dict[str, Bounds] = {
    "t0_s": (9 * US, 2 * US, 25 * US),
    "memory_efficiency": (0.85, 0.2, 1.0),
    "exponent": EXPONENT,
    "cold_s": (8 * US, 0.0, 40 * US),
    "wave_s": (4 * US, 0.3 * US, 12 * US),
    "group_cost": (0.05, 0.0, 2.0),
    "combine_s": (3 * US, 0.0, 12 * US),
    "split_bandwidth": (30.0, 2.0, 200.0),
    "l2_fraction": (0.7, 0.1, 2.0),
    "l2_speedup": (1.2, 1.0, 8.0),
}
FA2_BOUNDS: dict[str, Bounds] = {
    "reorder_s": (5 * US, 0.0, 15 * US),
    "block_bandwidth": (1.2, 0.3, 10.0),
    "tail": (0.3, 0.0, 1.0),
}
PREFILL_BOUNDS: dict[str, Bounds] = {
    "t0_s": (8 * US, 2 * US, 25 * US),
    "compute_efficiency": (0.6, 0.2, 1.0),
    "memory_efficiency": (0.7, 0.05, 1.0),
    "exponent": EXPONENT,
    "io_exponent": (1.5, 0.7, 12.0),
    "prologue_tokens": (100.0, 0.0, 2000.0),
    "wave_quantization": (0.3, 0.0, 1.0),
    "kv_write_efficiency": (0.8, 0.05, 1.0),
    "kv_write_head_s": (1e-9, 0.0, 30e-9),
    "l2_fraction": (0.5, 0.1, 2.0),
    "l2_speedup": (2.0, 1.0, 20.0),
}
ALL_REDUCE_BOUNDS: dict[str, Bounds] = {
    "one_shot_s": (4 * US, 0.1 * US, 40 * US),
    "one_shot_per_gpu_s": (0.1 * US, 0.0, 5 * US),
    "one_shot_efficiency": (0.6, 0.02, 1.0),
    "two_shot_s": (8 * US, 0.1 * US, 60 * US),
    "two_shot_per_gpu_s": (0.2 * US, 0.0, 10 * US),
    "two_shot_efficiency": (0.7, 0.02, 1.0),
}
NCCL_BOUNDS: dict[str, Bounds] = {
    "ll_s": (5 * US, 0.1 * US, 40 * US),
    "ll_per_gpu_s": (1.5 * US, 0.0, 15 * US),
    "ll_efficiency": (0.25, 0.01, 1.0),
    "ring_s": (20 * US, 0.1 * US, 100 * US),
    "ring_per_gpu_s": (1 * US, 0.0, 30 * US),
    "ring_efficiency": (0.7, 0.01, 1.0),
}
SMALL_OP_BOUNDS: dict[str, Bounds] = {
    "floor_s": (3 * US, 0.5 * US, 20 * US),
    "memory_efficiency": (0.5, 0.02, 1.0),
    "exponent": EXPONENT,
}
SEND_RECV_BOUNDS: dict[str, Bounds] = {
    "intra_s": (10 * US, 1 * US, 200 * US),
    "intra_bytes_per_s": (2e11, 1e9, 9e11),
    "inter_s": (20 * US, 1 * US, 500 * US),
    "inter_bytes_per_s": (2e10, 1e8, 9e11),
}
MOE_BOUNDS: dict[str, Bounds] = {
    "t0_s": (25 * US, 3 * US, 80 * US),
    "compute_efficiency": (0.5, 0.1, 1.0),
    "memory_efficiency": (0.9, 0.3, 1.0),
    "exponent": EXPONENT,
    "padding": (0.3, 0.0, 1.0),
    "prologue_elements": (100.0, 0.0, 3000.0),
    "activation_passes": (1.0, 0.0, 20.0),
    "hidden_passes": (1.0, 0.0, 20.0),
    "skew": (1.0, 0.2, 1.5),
    "wide_slowdown": (1.1, 1.0, 2.0),
}
SOFT = frozenset({"exponent", "io_exponent"})
