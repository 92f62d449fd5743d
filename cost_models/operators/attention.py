"""Attention kernels, for decoding requests and for prefill chunks.

Decode: one query token per sequence streams its whole KV cache. Prefill: chunks of new tokens attend causally
to themselves and to the prefix already cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import pow
from typing import Final

import numpy as np

from cost_models.calibration import DecodeParams, PrefillParams
from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm, soft_max

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


KV_WRITE_ELEMENTS: Final = (
    512.0  # Writing KV costs per element up to this many a token; beyond, bytes decide (measured).
)
NO_WINDOW: Final = 1 << 62


def prefill_attention_s(
    sequences: Floats,
    chunk: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    gpu: Gpu,
    params: PrefillParams,
    *,
    prefix: Floats | float = 0.0,
    kv_element_bytes: Floats | float = 2.0,
) -> Floats:
    """Seconds of causal attention of `sequences` equal chunks, elementwise; for fitting, so L2 reuse counts.

    Thread blocks of `tile_rows` query rows walk the keys up to their diagonal: prefix + (chunk + tile)/2 on
    average. t = t0 + pnorm(pnorm(waves · block, longest block, p), IO, p_io) + KV write, where a block
    takes 4·tile·dim·(keys + prologue) / (peak/SMs · ec), IO is Q, O, K, V and the prefix once over bw · em,
    and the KV write is tokens · heads(up to 4 of 128) · tau + bytes read and written / (bw · ew).
    """
    group = heads / kv_heads if params.packs_heads else np.ones_like(heads)
    blocks = sequences * (heads / group) * np.ceil(chunk * group / params.tile_rows)
    keys = prefix + np.minimum(chunk, 0.5 * (chunk + params.tile_rows / group))
    key_s = (
        4.0 * params.tile_rows * head_dim * gpu.sm_count / (gpu.bf16_flop_per_s * params.compute_efficiency)
    )
    waves = blocks / gpu.sm_count
    waves = (1.0 - params.wave_quantization) * waves + params.wave_quantization * np.ceil(waves)
    busy_s = waves * key_s * (keys + params.prologue_tokens)
    longest_s = key_s * (prefix + chunk + params.prologue_tokens)
    tokens = sequences * chunk
    io_bytes = 4.0 * tokens * (heads + kv_heads) * head_dim
    io_bytes = io_bytes + 2.0 * kv_element_bytes * sequences * prefix * kv_heads * head_dim
    missing = np.clip(io_bytes / (params.l2_fraction * gpu.l2_bytes) - 1.0, 0.0, 1.0)
    slowness = 1.0 / params.l2_speedup + (1.0 - 1.0 / params.l2_speedup) * missing
    io_s = slowness * io_bytes / (gpu.memory_bytes_per_s * params.memory_efficiency)
    write_bytes = 2.0 * (2.0 + kv_element_bytes) * tokens * kv_heads * head_dim
    write_s = slowness * write_bytes / (gpu.memory_bytes_per_s * params.kv_write_efficiency)
    elements = np.minimum(kv_heads * head_dim, KV_WRITE_ELEMENTS)
    write_s = write_s + tokens * elements / 128.0 * params.kv_write_head_s
    main_s = pnorm(pnorm(busy_s, longest_s, params.exponent), io_s, params.io_exponent)
    return params.t0_s + main_s + write_s


class PrefillKernel:
    """The same formula for one layer of one model, for chunks of any lengths in one launch, without L2 reuse.

    qk_dim and v_dim differ for MLA, which also writes only its latent, `written_elements` a token. A layer
    with a sliding window sees at most `window` keys.
    """

    def __init__(
        self,
        gpu: Gpu,
        params: PrefillParams,
        heads: int,
        kv_heads: int,
        qk_dim: int,
        v_dim: int,
        kv_element_bytes: float = 2.0,
        window: int | None = None,
        written_elements: int | None = None,
    ) -> None:
        self._heads = heads
        self._sm_count = gpu.sm_count
        self._tile_rows = params.tile_rows
        self._prologue = params.prologue_tokens
        self._quantization = params.wave_quantization
        self._exponent = params.exponent
        self._io_exponent = params.io_exponent
        self._window = NO_WINDOW if window is None else window
        self._group = heads / kv_heads if params.packs_heads else 1.0
        self._half_tile = params.tile_rows / self._group
        flop_per_s = gpu.bf16_flop_per_s * params.compute_efficiency
        self._row_s = 2.0 * params.tile_rows * (qk_dim + v_dim) * gpu.sm_count / flop_per_s
        kv_elements = kv_heads * (qk_dim + v_dim)
        bandwidth = gpu.memory_bytes_per_s
        q_elements = heads * (qk_dim + v_dim)
        self._io_token_s = 2.0 * (q_elements + kv_elements) / (bandwidth * params.memory_efficiency)
        self._prefix_token_s = kv_element_bytes * kv_elements / (bandwidth * params.memory_efficiency)
        written = kv_elements if written_elements is None else written_elements
        write_bytes = (2.0 + kv_element_bytes) * written
        self._write_token_s = write_bytes / (bandwidth * params.kv_write_efficiency)
        self._write_token_s += min(written / 2.0, KV_WRITE_ELEMENTS) / 128.0 * params.kv_write_head_s

    def seconds(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        """(attention, KV write) seconds beyond fixed time for (chunk, prefix) tokens of each sequence in
        the step.
        """
        group, window, prologue, sm_count = self._group, self._window, self._prologue, self._sm_count
        blocks = work = 0.0
        tokens = longest = prefix_tokens = 0
        for chunk, prefix in chunks:
            own = math.ceil(chunk * group / self._tile_rows) * self._heads / group
            keys = prefix + min(float(chunk), 0.5 * (chunk + self._half_tile))
            reach = prefix + chunk
            if reach > window:
                keys, reach, prefix = min(keys, float(window)), window, min(prefix, window)
            blocks += own
            work += own * (keys + prologue)
            if reach > longest:
                longest = reach
            tokens += chunk
            prefix_tokens += prefix
        waves = blocks / sm_count
        quantized = 1.0 + self._quantization * (math.ceil(waves) / waves - 1.0) if waves else 1.0
        busy_s = work / sm_count * quantized * self._row_s
        longest_s = self._row_s * (longest + prologue)
        io_s = tokens * self._io_token_s + prefix_tokens * self._prefix_token_s
        main_s = soft_max(soft_max(busy_s, longest_s, self._exponent), io_s, self._io_exponent)
        return main_s, tokens * self._write_token_s
