"""Each operator's formula against a case worked out by hand, on a GPU with round numbers (see helpers)."""

import dataclasses

import numpy as np
import pytest

from cost_models import calibration, gpu
from cost_models.calibration import (
    AllReduceParams,
    MoeParams,
    NcclParams,
    SendRecvParams,
    SmallOpParams,
)
from cost_models.operators.attention import (
    DecodeKernel,
    PrefillKernel,
    batch_seconds,
    decode_attention_s,
    prefill_attention_s,
)
from cost_models.operators.products import (
    all_reduce_s,
    custom_all_reduce_s,
    expert_loads,
    experts_touched,
    gemm_s,
    gemm_time,
    moe_s,
    nccl_s,
    rising_gemm_time,
    send_recv_s,
)
from cost_models.operators.roofline import pnorm, small_op_s, soft_max
from tests.cost_models.helpers import IDEAL_DECODE, IDEAL_GEMM, IDEAL_PREFILL, ROUND_GPU, floats


def test_the_soft_maximum_lies_between_maximum_and_sum():
    assert pnorm(floats(3.0), floats(4.0), 1.0)[0] == pytest.approx(7.0)
    assert pnorm(floats(3.0), floats(4.0), 2.0)[0] == pytest.approx(5.0)
    assert pnorm(floats(3.0), floats(4.0), 200.0)[0] == pytest.approx(4.0)
    assert pnorm(floats(0.0), floats(0.0), 2.0)[0] == 0.0
    assert soft_max(3e-6, 4e-6, 12.0) == pytest.approx(pnorm(floats(3e-6), floats(4e-6), 12.0)[0])


def test_a_tall_product_takes_its_flops():
    """2 · 12800 · 12800 · 1000 FLOPs = 3.2768e11: 3,276.8 us; 10,000 tiles of 128 x 128 fill 100 SMs
    evenly.
    """
    time = gemm_time(floats(12800), floats(12800), floats(1000), ROUND_GPU, IDEAL_GEMM)
    assert time.work_s[0] == pytest.approx(3276.8e-6, rel=1e-3)
    assert time.compute_bound[0] == 1.0


def test_a_thin_product_takes_the_bytes_of_its_weights():
    """One row times 10,000 x 10,000 weights of 2 bytes: 200 MB, and 40 kB of operands: 200.04 us."""
    time = gemm_time(floats(1), floats(10_000), floats(10_000), ROUND_GPU, IDEAL_GEMM)
    assert time.work_s[0] == pytest.approx(200.04e-6, rel=1e-3)
    assert time.compute_bound[0] == 0.0


def test_weight_only_quantisation_saves_bytes_and_no_flops():
    """Half a byte a weight: 50 MB instead of 200 MB; a compute-bound product gains nothing.

    (On a GPU ten times as quick at arithmetic, where even a tile of 64 rows for a single one does not
    matter.)
    """
    swift = dataclasses.replace(ROUND_GPU, bf16_flop_per_s=1e15)
    thin = gemm_time(floats(1), floats(10_000), floats(10_000), swift, IDEAL_GEMM, weight_bytes=0.5)
    assert thin.work_s[0] == pytest.approx(50.04e-6, rel=1e-3)
    tall = gemm_time(floats(12800), floats(12800), floats(1000), ROUND_GPU, IDEAL_GEMM, weight_bytes=0.5)
    assert tall.work_s[0] == pytest.approx(3276.8e-6, rel=1e-3)


def test_fp8_doubles_the_rate_of_a_part_that_has_it():
    tall = gemm_time(
        floats(12800), floats(12800), floats(1000), ROUND_GPU, IDEAL_GEMM, weight_bytes=1.0, compute="fp8"
    )
    assert tall.work_s[0] == pytest.approx(1638.4e-6, rel=1e-3)


def test_a_wave_that_is_not_full_costs_a_whole_one():
    """One column of outputs beyond what fills 100 SMs: with rounded waves, dearer than its work."""
    n = floats(256 * 100, 256 * 100 + 1)
    m, k = floats(128, 128), floats(4096, 4096)
    large_tiles = dataclasses.replace(IDEAL_GEMM, edge_elements=1e4)
    plain = gemm_time(m, n, k, ROUND_GPU, large_tiles).work_s
    rounded = gemm_time(m, n, k, ROUND_GPU, dataclasses.replace(large_tiles, wave_quantization=1.0)).work_s
    assert plain[1] / plain[0] < 1.02
    assert rounded[1] / rounded[0] > 1.05  # smaller tiles and split-K soften what would be a whole wave


def test_no_product_beats_the_datasheet():
    part, fit = gpu("h100-sxm"), calibration("h100-sxm")
    m, n, k = (column.ravel() for column in np.meshgrid([1, 64, 1000, 8192], [1024, 51200], [4096, 16384]))
    m, n, k = m.astype(float), n.astype(float), k.astype(float)
    sheet = np.maximum(2 * m * n * k / part.bf16_flop_per_s, 2 * n * k / part.memory_bytes_per_s)
    assert np.all(gemm_s(m, n, k, part, fit.gemm["bf16"]) > sheet)


def test_decode_streams_its_kv_cache():
    """100 sequences of 1,000 tokens, 8 KV heads, 512 bytes a token and head: 409.6 MB in 409.6 us."""
    time = decode_attention_s(
        floats(100), floats(1000), floats(32), floats(8), floats(512), ROUND_GPU, IDEAL_DECODE
    )
    assert time[0] == pytest.approx(409.6e-6, rel=1e-3)


def test_decode_waits_for_its_waves_of_blocks():
    """201 blocks on 100 SMs are three waves."""
    params = dataclasses.replace(IDEAL_DECODE, wave_s=4e-6)
    time = decode_attention_s(floats(201), floats(1), floats(1), floats(1), floats(512), ROUND_GPU, params)
    assert time[0] == pytest.approx(12e-6, rel=1e-3)


def test_flash_attention_2_never_splits_the_kv_of_a_model_without_groups():
    """One sequence and head of 100,000 tokens: 51.2 MB by one block of 1/100 of the bandwidth: 5.12 ms.
    Grouped: split.
    """
    params = dataclasses.replace(IDEAL_DECODE, splits_mha=False, block_bandwidth=1.0)
    plain = decode_attention_s(
        floats(1), floats(100_000), floats(1), floats(1), floats(512), ROUND_GPU, params
    )
    grouped = decode_attention_s(
        floats(1), floats(100_000), floats(4), floats(1), floats(512), ROUND_GPU, params
    )
    assert plain[0] == pytest.approx(5.12e-3, rel=1e-3)
    assert grouped[0] == pytest.approx(51.2e-6, rel=1e-3)


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb", "l40s"])
@pytest.mark.parametrize(
    ("sequences", "heads", "kv_heads"), [(64, 32, 8), (256, 32, 8), (100, 16, 16), (2, 8, 8)]
)
def test_the_decode_of_a_step_is_the_formula_that_was_fitted(name, sequences, heads, kv_heads):
    """Equal contexts far beyond L2: the scalar kernel of a step agrees with the array formula of the fit."""
    part, params = gpu(name), calibration(name).decode
    kv = 40_000
    array = decode_attention_s(
        floats(sequences), floats(kv), floats(heads), floats(kv_heads), floats(512), part, params
    )[0]
    batch = DecodeKernel(part, params, heads, kv_heads, 512.0).batch(sequences)
    step = params.t0_s + batch.extra_s + batch_seconds(batch, sequences * kv, kv)
    # A step charges for merging splits whatever the batch (a captured graph keeps that kernel).
    assert abs(step - array) <= params.combine_s + 1e-4 * array


def test_prefill_of_one_long_sequence_takes_half_the_square():
    """4 · 32 heads · 128 · q²/2 FLOPs for q = 16,384: 2.2e12 at 100 TFLOP/s, and half a tile more a row."""
    flops = 4 * 32 * 128 * 16_384**2 / 2
    time = prefill_attention_s(
        floats(1), floats(16_384), floats(32), floats(8), floats(128), ROUND_GPU, IDEAL_PREFILL
    )
    assert time[0] == pytest.approx(flops / 100e12, rel=0.02)


def test_a_chunk_attends_to_its_prefix_too():
    """1,024 new tokens behind 8,192: q · (prefix + q/2), 17 times as much as without the prefix but for half
    a tile.
    """
    kernel = PrefillKernel(ROUND_GPU, IDEAL_PREFILL, 32, 8, 128, 128)
    alone, _ = kernel.seconds(((1024, 0),))
    behind, _ = kernel.seconds(((1024, 8192),))
    assert behind / alone == pytest.approx((8192 + 512 + 64) / (512 + 64), rel=0.02)


def test_a_window_bounds_what_a_chunk_sees():
    kernel = PrefillKernel(ROUND_GPU, IDEAL_PREFILL, 32, 8, 128, 128, window=128)
    near, _ = kernel.seconds(((1024, 1024),))
    far, _ = kernel.seconds(((1024, 100_000),))
    assert far == pytest.approx(near)


def test_chunks_of_a_step_share_one_launch():
    """The scalar kernel of a step agrees with the array formula for equal chunks, apart from L2."""
    part, params = gpu("h100-sxm"), calibration("h100-sxm").prefill
    array = prefill_attention_s(floats(8), floats(4096), floats(32), floats(8), floats(128), part, params)[0]
    attention, write = PrefillKernel(part, params, 32, 8, 128, 128).seconds(((4096, 0),) * 8)
    assert params.t0_s + attention + write == pytest.approx(array, rel=1e-6)


def test_all_reduce_takes_the_better_of_one_shot_and_two_shot():
    """4 GPUs, 100 GB/s. 100 kB: one-shot 1 + 3 us, two-shot 5 + 1.5 us. 10 MB: 1 + 300 us against 5 + 150
    us.
    """
    params = AllReduceParams(1e-6, 0.0, 1.0, 5e-6, 0.0, 1.0)
    time = custom_all_reduce_s(floats(100e3, 10e6), floats(4, 4), ROUND_GPU, params)
    assert time == pytest.approx([4e-6, 155e-6])


def test_beyond_8_mb_nccl_takes_over():
    custom = AllReduceParams(1e-6, 0.0, 1.0, 1e-6, 0.0, 1.0)
    nccl = NcclParams(1.0, 0.0, 1.0, 1e-3, 0.0, 1.0)
    below, above = all_reduce_s(floats(8 << 20, (8 << 20) + 1), floats(2, 2), ROUND_GPU, custom, nccl)
    assert below == pytest.approx(1e-6 + (8 << 20) / 100e9)
    assert above == pytest.approx(1e-3 + (8 << 20) / 100e9, rel=1e-4)


def test_one_gpu_has_nobody_to_talk_to():
    fit = calibration("h100-sxm")
    assert (
        all_reduce_s(floats(1e6), floats(1), gpu("h100-sxm"), fit.all_reduce, fit.nccl["all_reduce"])[0]
        == 0.0
    )


def test_gathering_moves_half_as_much_as_reducing():
    params = NcclParams(1.0, 0.0, 1.0, 0.0, 0.0, 1.0)
    reduced = nccl_s("all_reduce", floats(1e9), floats(8), ROUND_GPU, params)
    gathered = nccl_s("all_gather", floats(1e9), floats(8), ROUND_GPU, params)
    assert reduced[0] == pytest.approx(2 * 7 / 8 * 1e9 / 100e9)
    assert gathered[0] == pytest.approx(reduced[0] / 2)


def test_a_transfer_is_latency_plus_bytes():
    params = SendRecvParams(10e-6, 1e11, 20e-6, 1e10)
    assert send_recv_s(floats(1e6), params)[0] == pytest.approx(20e-6)
    assert send_recv_s(floats(1e6), params, between_nodes=True)[0] == pytest.approx(120e-6)


def test_a_small_kernel_has_a_floor():
    params = SmallOpParams(2e-6, 0.5, 50.0)
    time = small_op_s(floats(1.0, 10e6), ROUND_GPU, params)
    assert time == pytest.approx([2e-6, 20e-6], rel=1e-3)


def test_random_routing_touches_experts_like_a_coupon_collector():
    """One token touches exactly its top-k; two of 8 experts with top-2: 8 · (1 - 0.75²) = 3.5; many touch
    all.
    """
    assert experts_touched(floats(1), 8, 2)[0] == pytest.approx(2.0)
    assert experts_touched(floats(2), 8, 2)[0] == pytest.approx(3.5)
    assert experts_touched(floats(1000), 8, 2)[0] == pytest.approx(8.0)


def test_skewed_loads_add_up_and_favour_some():
    loads = expert_loads(1000, 64, 4, 1.2)
    assert loads.sum() == pytest.approx(4000)
    assert loads.max() > 3 * loads.min()


def test_experts_read_the_weights_that_are_touched():
    """Two experts of 3 · 1000 · 1000 weights of 2 bytes: 12 MB at 1 TB/s."""
    params = MoeParams(0.0, 1.0, 1.0, 50.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    time = moe_s(
        floats(1), floats(2), floats(2), floats(8), floats(1000), floats(1000), floats(2), ROUND_GPU, params
    )
    assert time[0] == pytest.approx(12e-6, rel=1e-3)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "l40s"])
@pytest.mark.parametrize("counts", [range(1, 513), range(200, 801, 3), (1, 2, 4, 8, 16, 700), (77,)])
def test_products_in_rising_order_are_the_products_one_by_one(name, counts):
    """Leaving out candidates that cannot be the best changes no bit."""
    part, params = gpu(name), calibration(name).gemm["bf16"]
    m = floats(*counts)
    least = np.where(m > 256, 128.0, 0.0)
    n, k = floats(6144, 28_672, 1000), floats(4096, 4096, 16_384)
    rising = rising_gemm_time(m, n, k, part, params, weight_bytes=2.0, compute="bf16", least_tile_rows=least)
    for layer in range(3):
        for i in range(0, len(m), 7):
            one = gemm_time(floats(m[i]), n[[layer]], k[[layer]], part, params, least_tile_rows=least[i])
            assert rising.work_s[layer, i] == one.work_s[0]
            assert rising.compute_bound[layer, i] == one.compute_bound[0]
