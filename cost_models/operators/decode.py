"""Decode attention: one query token per sequence streams its whole KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import pow

import numpy as np

from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm
from cost_models.parameters import DecodeParams

SPLIT_BELOW_SLOTS = 0.8  # FlashAttention splits KV while blocks fill less than this share of the slots.
SPLIT_MIN_KV_TOKENS = 256


def decode_attention_s(
    sequences: Floats,
    kv_tokens: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_bytes: Floats,
    gpu: Gpu,
    params: DecodeParams,
) -> Floats:
    """Seconds of decode attention over `sequences` of equal length, elementwise; for fitting, so L2 counts.

    head_bytes: key and value of one token and KV head. t = t0 + extras + pnorm(stream, waves, p) with
    stream = cold + bytes / (bw · em) and waves = ceil(blocks / SMs) · wave · (1 + group_cost · (group -
    1)/8), one block a sequence and KV head. Kernels that split KV (while blocks fill less than 0.8 of the
    slots) merge the splits from 256 tokens on; blocks that do not split pay for the last, partly filled
    wave, and none streams faster than its share of bandwidth. Structure: FlashAttention-2 and -3 papers;
    parameters fitted.
    """
    blocks = sequences * kv_heads
    block_bytes = kv_tokens * head_bytes
    total = blocks * block_bytes
    missing = np.clip(total / (params.l2_fraction * gpu.l2_bytes) - 1.0, 0.0, 1.0)
    reuse = params.l2_speedup + (1.0 - params.l2_speedup) * missing
    speed = gpu.memory_bytes_per_s * params.memory_efficiency * reuse
    stream_s = total / speed + params.cold_s * missing
    per_sm = gpu.memory_bytes_per_s / gpu.sm_count
    grouped = heads > kv_heads
    slots = np.where(grouped, _slots(gpu, params), float(gpu.sm_count))
    split = (blocks < SPLIT_BELOW_SLOTS * slots) & (grouped | params.splits_mha)
    extra_s = np.where(split & (kv_tokens >= SPLIT_MIN_KV_TOKENS), params.combine_s, 0.0)
    extra_s = extra_s + np.where(grouped & (sequences > 1) & (kv_heads > 1), params.reorder_s, 0.0)
    split_s = np.maximum(stream_s, block_bytes / (params.split_bandwidth * per_sm))
    occupied = blocks / slots
    waste = np.where(occupied > 1.0, np.ceil(occupied) / np.maximum(occupied, 1.0), 1.0)
    whole_s = stream_s * (1.0 + params.tail * (waste - 1.0))
    if params.block_bandwidth:
        whole_s = np.maximum(whole_s, block_bytes / (params.block_bandwidth * per_sm))
    waves_s = np.ceil(blocks / gpu.sm_count) * params.wave_s * _slowdown(params, heads / kv_heads)
    return params.t0_s + extra_s + pnorm(np.where(split, split_s, whole_s), waves_s, params.exponent)


def _slots(gpu: Gpu, params: DecodeParams) -> float:
    return gpu.sm_count * (1.0 if params.splits_mha else 2.0)


def _slowdown(params: DecodeParams, group: Floats) -> Floats:
    return 1.0 + params.group_cost * (group - 1.0) / 8.0


class DecodeBatch:
    """What a number of sequences fixes: see `DecodeKernel.batch`. All in seconds, `_token_s` per token;
    `root` is 1 / exponent.
    """

    __slots__ = ("cold_s", "exponent", "extra_s", "longest_token_s", "root", "token_s", "waves_s")

    def __init__(
        self,
        extra_s: float,
        cold_s: float,
        token_s: float,
        longest_token_s: float,
        waves_s: float,
        exponent: float,
    ) -> None:
        self.extra_s = extra_s
        self.cold_s = cold_s
        self.token_s = token_s
        self.longest_token_s = longest_token_s
        self.waves_s = waves_s
        self.exponent = exponent
        self.root = 1.0 / exponent


def batch_seconds(batch: DecodeBatch, context_tokens: int, longest_tokens: int) -> float:
    """Seconds of one layer beyond fixed time and extras, for contexts of `context_tokens` in all.

    Called once or twice a step: pnorm of the stream and the waves, written out.
    """
    high, low = batch.cold_s + context_tokens * batch.token_s, batch.waves_s
    longest_s = longest_tokens * batch.longest_token_s
    if longest_s > high:
        high = longest_s
    if low > high:
        low, high = high, low
    return high * pow(1.0 + pow(low / high, batch.exponent), batch.root)


def run_seconds(
    batch: DecodeBatch, layers: float, count: int, context_tokens: int, longest_tokens: int, num_steps: int
) -> list[float]:
    """`batch_seconds` times `layers` of steps in a row, in each of which `count` contexts have grown by a
    token.
    """
    cold_s, token_s, longest_token_s, waves_s = (
        batch.cold_s,
        batch.token_s,
        batch.longest_token_s,
        batch.waves_s,
    )
    exponent, root = batch.exponent, batch.root
    seconds: list[float] = []
    for _ in range(num_steps):
        high, low = cold_s + context_tokens * token_s, waves_s
        longest_s = longest_tokens * longest_token_s
        if longest_s > high:
            high = longest_s
        if low > high:
            low, high = high, low
        seconds.append(layers * (high * pow(1.0 + pow(low / high, exponent), root)))
        context_tokens += count
        longest_tokens += 1
    return seconds


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """The same formula for one layer of one model, for sums over sequences of any length, without L2 reuse.

    flops_per_token: arithmetic per context token, which limits MLA (many heads share one latent).
    """

    gpu: Gpu
    params: DecodeParams
    heads: int
    kv_heads: int
    head_bytes: float
    flops_per_token: float = 0.0
    compute_efficiency: float = 1.0

    def batch(self, sequences: int) -> DecodeBatch:
        """Constants of a step with `sequences` decoding requests."""
        params, gpu = self.params, self.gpu
        grouped = self.heads > self.kv_heads
        blocks = sequences * self.kv_heads
        slots = _slots(gpu, params) if grouped else float(gpu.sm_count)
        per_sm = gpu.memory_bytes_per_s / gpu.sm_count
        speed = gpu.memory_bytes_per_s * params.memory_efficiency
        token_s = self.kv_heads * self.head_bytes / speed
        arithmetic_s = self.flops_per_token / (gpu.bf16_flop_per_s * self.compute_efficiency)
        token_s = max(token_s, arithmetic_s)
        tail = 0.0
        may_split = grouped or params.splits_mha
        # A captured graph keeps the merge of splits whatever the batch, so more requests are never quicker.
        extra_s = params.combine_s if may_split else 0.0
        if may_split and blocks < SPLIT_BELOW_SLOTS * slots:
            longest_token_s = self.head_bytes / (params.split_bandwidth * per_sm)
        else:
            occupied = blocks / slots
            if occupied > 1.0:
                tail = params.tail * (math.ceil(occupied) / occupied - 1.0)
            share = params.block_bandwidth * per_sm
            longest_token_s = self.head_bytes / share if share else 0.0
        if grouped and sequences > 1 and self.kv_heads > 1:
            extra_s += params.reorder_s
        wave_s = params.wave_s * (1.0 + params.group_cost * (self.heads / self.kv_heads - 1.0) / 8.0)
        return DecodeBatch(
            extra_s=extra_s,
            cold_s=params.cold_s,
            token_s=token_s * (1.0 + tail),
            longest_token_s=longest_token_s,
            waves_s=math.ceil(blocks / gpu.sm_count) * wave_s,
            exponent=params.exponent,
        )
