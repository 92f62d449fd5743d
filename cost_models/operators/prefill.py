"""Prefill attention: chunks of new tokens attend causally to themselves and to the prefix already cached."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from cost_models.gpus import Gpu
from cost_models.operators.roofline import Floats, pnorm, soft_max
from cost_models.parameters import PrefillParams

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
