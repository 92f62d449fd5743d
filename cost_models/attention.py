"""Attention over all layers of a model: which kernels run, on how many layers, over what part of the
context.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.calibration import Calibration
from cost_models.deployment import Deployment
from cost_models.engines import SHORT_CHUNK_TOKENS, ServingFacts
from cost_models.gpus import Gpu
from cost_models.models import Model
from cost_models.operators.attention import (
    DecodeBatch,
    DecodeKernel,
    PrefillKernel,
    batch_seconds,
    run_seconds,
)

MIN_LAUNCH_S = 1e-6


class ModelAttention:
    """Seconds of attention, all layers of one engine. Layers with a sliding window see only part of a
    context.
    """

    def __init__(
        self,
        deployment: Deployment,
        fitted: Calibration,
        facts: ServingFacts,
    ) -> None:
        spec, part, parallel = deployment.model, deployment.gpu, deployment.parallel
        kv_bytes = deployment.kv_element_bytes
        window = spec.sliding_window
        self.num_layers = float(spec.num_layers)
        self.window_tokens = window.tokens if window else 0
        self.window_layers = window.num_layers if window else 0
        self.full_layers = float(spec.num_layers - self.window_layers)
        whole = fitted.whole_model
        self.decode_fixed_s = spec.num_layers * max(fitted.decode.t0_s - whole.launch_gap_s, MIN_LAUNCH_S)
        self.prefill_fixed_s = spec.num_layers * max(fitted.prefill.t0_s - whole.launch_gap_s, MIN_LAUNCH_S)
        heads = spec.num_heads // parallel.tensor
        # fp8 streams slower a byte than its half size promises
        streamed = kv_bytes / (whole.fp8_kv_efficiency if kv_bytes == 1 else 1.0)
        if spec.mla:
            mla = spec.mla
            qk_dim, v_dim, kv_heads = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim, heads
            written: int | None = mla.latent_dim
            # All heads share one latent; their arithmetic on it, not only its bytes, can set the pace.
            self._decode = DecodeKernel(
                part,
                fitted.decode,
                heads,
                1,
                mla.latent_dim * streamed,
                flops_per_token=2.0 * heads * (mla.latent_dim + mla.kv_lora_rank),
                compute_efficiency=fitted.prefill.compute_efficiency,
            )
        else:
            qk_dim = v_dim = spec.head_dim
            kv_heads, written = parallel.kv_heads_per_gpu(spec), None
            self._decode = DecodeKernel(part, fitted.decode, heads, kv_heads, 2.0 * spec.head_dim * streamed)
        prefill = replace(
            fitted.prefill, compute_efficiency=fitted.prefill.compute_efficiency * facts.compute_derate
        )
        self._prefill, self._window_prefill = (
            PrefillKernel(part, prefill, heads, kv_heads, qk_dim, v_dim, float(kv_bytes), limit, written)
            for limit in (None, self.window_tokens)
        )
        self._mixed_slowdown = facts.mixed_decode_slowdown
        pace = facts.mixed_block_bandwidth * part.memory_bytes_per_s / part.sm_count
        self._mixed_token_s = self._decode.head_bytes / pace if pace else 0.0
        # A kernel that does not pack the heads of a group into one tile suffers beside any chunk.
        self._harmless_chunk = SHORT_CHUNK_TOKENS if prefill.packs_heads else 1
        self._prefix_token_s = _expand_prefix_s(spec, part, heads, fitted)

    def decode_batch(self, count: int) -> DecodeBatch:
        """What `count` decoding requests fix."""
        return self._decode.batch(count)

    def decode_s(
        self, batch: DecodeBatch, count: int, context: int, longest: int, window_context: tuple[int, ...]
    ) -> float:
        """Seconds of reading `context` tokens of KV in all by `count` requests, beyond fixed times."""
        seconds = self.full_layers * batch_seconds(batch, context, longest)
        if self.window_layers:
            # Where the caller does not say what lies within the window, every context is cut at it.
            inside = window_context[0] if window_context else min(context, count * self.window_tokens)
            seconds += self.window_layers * batch_seconds(batch, inside, min(longest, self.window_tokens))
        return seconds

    def decode_run_s(
        self, batch: DecodeBatch, count: int, context: int, longest: int, num_steps: int
    ) -> list[float]:
        """`decode_s` of steps in a row: in each, every request has a token more than in the one before."""
        if self.window_layers:
            return [
                self.decode_s(batch, count, context + i * count, longest + i, ()) for i in range(num_steps)
            ]
        return run_seconds(batch, self.full_layers, count, context, longest, num_steps)

    def beside_prefill_s(self, kv_s: float, longest: int, chunks: tuple[tuple[int, int], ...]) -> float:
        """Decode attention that alone takes `kv_s`, in a step that also has these prefill chunks: one kernel
        serves both, and the longest context is a single block's work.
        """
        for chunk, _ in chunks:
            if chunk > self._harmless_chunk:
                break
        else:
            return kv_s
        block_s = self.full_layers * longest * self._mixed_token_s
        if self.window_layers:
            block_s += self.window_layers * min(longest, self.window_tokens) * self._mixed_token_s
        return kv_s * self._mixed_slowdown + block_s

    def prefill_s(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        """(attention, KV write) seconds of (chunk, prefix) tokens, beyond fixed times."""
        attention_s, write_s = self._prefill.seconds(chunks)
        attention_s *= self.full_layers
        if self.window_layers:
            attention_s += self.window_layers * self._window_prefill.seconds(chunks)[0]
        if self._prefix_token_s:
            attention_s += self._prefix_token_s * sum(prefix for _, prefix in chunks)
        return attention_s, self.num_layers * write_s


def _expand_prefix_s(spec: Model, part: Gpu, heads: int, fitted: Calibration) -> float:
    """MLA expands the latents of a cached prefix again for every chunk: seconds a prefix token."""
    if not spec.mla:
        return 0.0
    elements = heads * (spec.mla.qk_nope_head_dim + spec.mla.v_head_dim)
    flops = 2.0 * spec.mla.kv_lora_rank * elements
    return spec.num_layers * flops / (part.bf16_flop_per_s * fitted.gemm["bf16"].compute_efficiency)
