"""A GPU with round numbers and parameters without effects, so that a formula can be worked out by hand."""

import dataclasses

import numpy as np

from cost_models import gpu
from cost_models.calibration import DecodeParams, GemmParams, PrefillParams

# 100 SMs, 100 TFLOP/s, 1 TB/s: a microsecond is 1e8 FLOPs or 1e6 bytes.
ROUND_GPU = dataclasses.replace(
    gpu("a100-sxm-80gb"),
    name="round",
    sm_count=100,
    bf16_flop_per_s=100e12,
    fp8_flop_per_s=200e12,
    memory_bytes_per_s=1e12,
    nvlink_bytes_per_s=100e9,
    l2_bytes=1e6,
)

IDEAL_GEMM = GemmParams(t0_s=0.0, compute_efficiency=1.0, memory_efficiency=1.0, exponent=50.0)
IDEAL_PREFILL = PrefillParams(
    t0_s=0.0,
    compute_efficiency=1.0,
    memory_efficiency=1.0,
    exponent=50.0,
    io_exponent=50.0,
    prologue_tokens=0.0,
    wave_quantization=0.0,
    kv_write_efficiency=1.0,
    kv_write_head_s=0.0,
)
IDEAL_DECODE = DecodeParams(
    t0_s=0.0,
    memory_efficiency=1.0,
    exponent=50.0,
    cold_s=0.0,
    wave_s=0.0,
    group_cost=0.0,
    combine_s=0.0,
    split_bandwidth=1e9,
)


def floats(*values):
    return np.array(values, dtype=np.float64)
