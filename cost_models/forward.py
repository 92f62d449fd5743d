"""A forward pass over all layers of a model: attention, that is which kernels run on how many layers over
what part of the context; and the part that depends on the number of tokens alone: linear layers, experts,
small kernels, communication, computed for many token counts at once and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cost_models.calibration import Calibration
from cost_models.deployment import Deployment
from cost_models.engines import (
    LARGE_PRODUCT_ROWS,
    LARGE_PRODUCT_TILE_ROWS,
    SHORT_CHUNK_TOKENS,
    ServingFacts,
    padded_tokens,
)
from cost_models.gpus import Gpu
from cost_models.models import Model
from cost_models.operators.attention import (
    DecodeBatch,
    DecodeKernel,
    PrefillKernel,
    batch_seconds,
    run_seconds,
)
from cost_models.operators.products import (
    all_reduce_s,
    experts_touched,
    moe_s,
    nccl_s,
    rising_gemm_time,
    send_recv_s,
)
from cost_models.operators.roofline import Floats, pnorm
from cost_models.weights import Linear, attention_linears, ffn_linears, head_parameters

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


class Row:
    """Seconds of one token count: by what they wait for, and their sum."""

    __slots__ = ("comm_s", "compute_s", "latency_s", "total_s", "weights_s")

    def __init__(self, compute_s: float, weights_s: float, comm_s: float, latency_s: float) -> None:
        self.compute_s = compute_s
        self.weights_s = weights_s
        self.comm_s = comm_s
        self.latency_s = latency_s
        self.total_s = compute_s + weights_s + comm_s + latency_s


BLOCK: Final = 512


class RowTable:
    """Rows by token count, worked out many at a time when first asked for."""

    def __init__(self, compute: Callable[[Floats], Floats], sizes: tuple[int, ...] = ()) -> None:
        """`compute` maps rising counts, shape (n,), to seconds of shape (4, n): compute, weights, comm,
        latency. `sizes`: a count up to the largest of these takes as long as the next of them.
        """
        self._compute = compute
        self._sizes = sizes
        self._largest = sizes[-1] if sizes else 0
        self._rows: dict[int, Row] = {}
        if not sizes:
            self._rows[0] = Row(0.0, 0.0, 0.0, 0.0)

    def row(self, count: int) -> Row:
        """The row of a count."""
        row = self._rows.get(count)
        if row is None:
            self._fill(count)
            row = self._rows[count]
        return row

    def _fill(self, count: int) -> None:
        """Work out the padded counts, or the others of a block: 1 to 512, 513 to 1,024, …"""
        if count <= self._largest:
            by_size = dict(zip(self._sizes, self._work_out(self._sizes), strict=True))
            for each in range(self._largest + 1):
                self._rows[each] = by_size[padded_tokens(each, self._sizes)]
            return
        first = count - (count - 1) % BLOCK
        for each, row in enumerate(self._work_out(range(first, first + BLOCK)), first):
            if each > self._largest:
                self._rows[each] = row

    def _work_out(self, counts: Sequence[int]) -> list[Row]:
        columns = self._compute(np.array(counts, dtype=np.float64)).tolist()
        return [
            Row(compute_s, weights_s, comm_s, latency_s)
            for compute_s, weights_s, comm_s, latency_s in zip(*columns, strict=True)
        ]


class ForwardPass:
    """Times of one model on one kind of GPU, per engine (all its tensor-parallel ranks run in step)."""

    def __init__(
        self,
        deployment: Deployment,
        fitted: Calibration,
        facts: ServingFacts,
        *,
        sampler_bytes_per_logit: float = 0.0,
    ) -> None:
        """`sampler_bytes_per_logit`: memory traffic of sorting the vocabulary for top-p, 0 where it is not
        sorted.
        """
        self._facts = facts
        self._sampler_bytes_per_logit = sampler_bytes_per_logit
        self._spec = spec = deployment.model
        self._gpu = deployment.gpu
        self._parallel = parallel = deployment.parallel
        self._weights = weights = deployment.weight_dtype
        self._fitted = fitted
        self._linears = attention_linears(spec, parallel, weights) + ffn_linears(spec, parallel, weights)

    def layers(self, tokens: Floats) -> Floats:
        """Embedding and all layers without attention kernels; (4, n) seconds in the order of `Row`."""
        seconds = np.zeros((4, len(tokens)))
        self._add_linears(seconds, tokens, self._linears)
        if self._spec.moe:
            self._add_experts(seconds, tokens)
        self._add_small_kernels(seconds, tokens)
        seconds[3] += self._spec.num_layers * self._facts.layer_gap_s
        seconds[2] += self._communication_s(tokens)
        return seconds

    def head(self, rows: Floats) -> Floats:
        """Final norm, vocabulary projection, gathering the logits and sampling, for `rows` sampled rows."""
        seconds = np.zeros((4, len(rows)))
        tp, vocab = self._parallel.tensor, head_parameters(self._spec, self._parallel) // self._spec.hidden
        self._add_linears(seconds, rows, [Linear("head", vocab, self._spec.hidden, 1, quantized=False)])
        self._add_kernels(seconds, 1.0, 2.0 * 4.0 * rows * self._spec.hidden)
        # Softmax, noise and argmax over 32-bit logits; every rank samples all rows, whatever TP.
        self._add_kernels(seconds, 3.0, 2.0 * 4.0 * rows * self._spec.vocab)
        seconds[3] += self._sampler_bytes_per_logit * rows * self._spec.vocab / self._gpu.memory_bytes_per_s
        if tp > 1:
            gathered = 2.0 * rows * self._spec.vocab
            params = self._fitted.nccl["all_gather"]
            seconds[2] += nccl_s("all_gather", gathered, 0.0 * rows + tp, self._gpu, params)
        return seconds

    def _add_linears(self, seconds: Floats, tokens: Floats, linears: Sequence[Linear]) -> None:
        times: dict[Linear, Floats] = {}
        for quantized in (False, True):
            alike = [linear for linear in linears if linear.quantized == quantized]
            if alike:
                times.update(zip(alike, self._product_s(tokens, alike), strict=True))
        for linear in linears:
            seconds += linear.count * times[linear]

    def _product_s(self, tokens: Floats, linears: Sequence[Linear]) -> Floats:
        """One product of each of these linear layers, all of one dtype; (layers, 4, n) seconds."""
        compute, size = ("bf16", 2.0)
        if linears[0].quantized:
            compute, size = self._gpu.compute_dtype(self._weights.compute), self._weights.bytes_per_weight
        table = self._fitted.gemm
        fallback = table["fp8"] if compute == "fp4" else table["bf16"]
        params = table.get(compute, fallback)
        params = replace(
            params,
            memory_efficiency=params.memory_efficiency * self._facts.weight_stream_gain,
            compute_efficiency=params.compute_efficiency * self._facts.compute_derate,
        )
        time = rising_gemm_time(
            tokens,
            np.array([float(linear.n) for linear in linears]),
            np.array([float(linear.k) for linear in linears]),
            self._gpu,
            params,
            weight_bytes=size,
            compute=compute,
            least_tile_rows=np.where(tokens > LARGE_PRODUCT_ROWS, LARGE_PRODUCT_TILE_ROWS, 0.0),
        )
        work_s = np.where(tokens == 1.0, time.work_s / self._facts.single_row_gain, time.work_s)
        seconds = np.zeros((len(linears), 4, len(tokens)))
        seconds[:, 0] = np.where(time.compute_bound, work_s, 0.0)
        seconds[:, 1] = np.where(time.compute_bound, 0.0, work_s)
        seconds[:, 3] = params.t0_s
        return seconds

    def _add_experts(self, seconds: Floats, tokens: Floats) -> None:
        moe, parallel, dtype, params = self._spec.moe, self._parallel, self._weights, self._fitted.moe
        assert moe is not None
        quantized = dtype.scope != "none"
        size = dtype.bytes_per_weight if quantized else 2.0
        compute = self._gpu.compute_dtype(dtype.compute) if quantized else "bf16"
        ones = np.ones_like(tokens)
        # With expert parallelism every data-parallel engine brings its tokens, assumed alike.
        spread = parallel.expert > 1
        shared = tokens * parallel.data if spread else tokens
        ranks = parallel.expert if spread else 1
        rows = shared * moe.top_k / ranks
        touched = experts_touched(shared, moe.num_experts, moe.top_k) / ranks
        inner = moe.intermediate if spread else moe.intermediate / parallel.tensor
        work_s = moe_s(
            shared,
            rows,
            touched,
            moe.num_experts * ones,
            self._spec.hidden * ones,
            inner * ones,
            moe.top_k * ones,
            self._gpu,
            params,
            weight_bytes=size,
            compute=compute,
        )
        work_s = work_s - params.t0_s
        flops_s = 6.0 * rows * self._spec.hidden * inner / self._gpu.peak_flop_per_s(compute)
        bytes_s = touched * 3.0 * self._spec.hidden * inner * size / self._gpu.memory_bytes_per_s
        compute_bound = flops_s / params.compute_efficiency > bytes_s / params.memory_efficiency
        seconds[0] += moe.num_layers * np.where(compute_bound, work_s, 0.0)
        seconds[1] += moe.num_layers * np.where(compute_bound, 0.0, work_s)
        seconds[3] += moe.num_layers * max(params.t0_s - self._fitted.whole_model.launch_gap_s, 0.0)

    def _add_kernels(self, seconds: Floats, count: float, moved_bytes: Floats) -> None:
        """`count` elementwise kernels as the compiler fuses them: a floor, and bytes at a streaming
        kernel's speed.

        What passes the floor counts as compute: it grows with the tokens as the products do.
        """
        whole = self._fitted.whole_model
        floor_s = whole.graph_floor_s
        stream_s = moved_bytes / (self._gpu.memory_bytes_per_s * whole.fused_memory_efficiency)
        beyond_s = pnorm(stream_s, 0.0 * stream_s + floor_s, 2.0) - floor_s
        seconds[0] += count * beyond_s
        seconds[3] += count * floor_s

    def _add_small_kernels(self, seconds: Floats, tokens: Floats) -> None:
        """Embedding; per layer two norms (each with its residual), rope (with any query and key norm),
        activation.
        """
        spec, tp = self._spec, self._parallel.tensor
        row = 2.0 * tokens
        heads = spec.num_heads // tp + (1 if spec.mla else 2 * self._parallel.kv_heads_per_gpu(spec))
        dim = spec.mla.qk_nope_head_dim + spec.mla.qk_rope_head_dim if spec.mla else spec.head_dim
        self._add_kernels(seconds, 1.0, 2.0 * row * spec.hidden)
        self._add_kernels(seconds, 2.0 * spec.num_layers, 4.0 * row * spec.hidden)
        self._add_kernels(seconds, (2.0 if spec.qk_norm else 1.0) * spec.num_layers, 2.0 * row * heads * dim)
        if spec.mla:
            self._add_kernels(seconds, 2.0 * spec.num_layers, 2.0 * row * spec.mla.latent_dim)
        inner = (spec.ffn_matrices * spec.intermediate) / tp
        self._add_kernels(seconds, spec.num_dense_layers, row * inner)

    def _communication_s(self, tokens: Floats) -> Floats:
        spec, parallel, fit = self._spec, self._parallel, self._fitted
        hidden_bytes = 2.0 * tokens * spec.hidden
        seconds = np.zeros_like(tokens)
        if parallel.tensor > 1:
            gpus = 0.0 * tokens + parallel.tensor
            one = all_reduce_s(hidden_bytes, gpus, self._gpu, fit.all_reduce, fit.nccl["all_reduce"])
            seconds = seconds + (2 * spec.num_layers + 1) * one
        if parallel.expert > 1 and parallel.data > 1:
            gpus = 0.0 * tokens + parallel.expert
            everything = hidden_bytes * parallel.data
            gather = nccl_s("all_gather", everything, gpus, self._gpu, fit.nccl["all_gather"])
            scatter = nccl_s("reduce_scatter", everything, gpus, self._gpu, fit.nccl["reduce_scatter"])
            seconds = seconds + spec.num_moe_layers * (gather + scatter)
        if parallel.pipeline > 1:
            seconds = seconds + (parallel.pipeline - 1) * send_recv_s(hidden_bytes, fit.send_recv)
        return seconds
