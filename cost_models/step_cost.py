"""How long a step takes: what the token count fixes, plus attention over the contexts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cost_models.calibration import Calibration, calibration
from cost_models.dtypes import WeightDtype, kv_dtype_bytes, weight_dtype
from cost_models.engines import (
    EngineProfile,
    cudagraph_capture_sizes,
    engine_defaults,
    engine_profile,
    padded_tokens,
)
from cost_models.forward import ForwardPass, Row, RowTable
from cost_models.gpus import Gpu, gpu
from cost_models.models import Model, model
from cost_models.operators.decode import DecodeBatch, DecodeKernel, batch_seconds
from cost_models.operators.prefill import PrefillKernel
from cost_models.parallel import Parallelism
from cost_models.shapes import BOUNDS, StepCost, StepShape

MIN_KERNEL_S = 1e-6


def model_weight_dtype(spec: Model, name: str) -> WeightDtype:
    """The weight dtype called `name`; `auto` is the checkpoint's own."""
    return weight_dtype(spec.quantization or spec.dtype if name == "auto" else name)


class _Decodes(NamedTuple):
    """What a number of decoding requests fixes about a step of nothing else; unpacked in one go once a
    step.
    """

    total_s: float
    stage_s: float
    largest_s: float
    bound: str
    host_s: float
    batch: DecodeBatch


class StepCostModel:
    """Maps a StepShape to seconds for one model on one kind of engine. Pure: equal shapes cost equal time."""

    def __init__(
        self,
        spec: Model,
        part: Gpu,
        parallel: Parallelism,
        *,
        weights: WeightDtype,
        kv_bytes: int,
        fitted: Calibration,
        profile: EngineProfile,
        async_scheduling: bool,
        capture_sizes: tuple[int, ...],
    ) -> None:
        """Use `build`, which fills in an engine release's defaults."""
        self.model = spec
        self.gpu = part
        self.parallel = parallel
        self.weights = weights
        self.calibration = fitted
        self.profile = profile
        self.async_scheduling = async_scheduling
        self.capture_sizes = capture_sizes
        forward = ForwardPass(spec, part, parallel, weights, fitted)
        self._layers = RowTable(forward.layers)
        self._heads = RowTable(forward.head)
        self._prepare_attention(kv_bytes)
        self._decodes: dict[int, _Decodes] = {}
        self._stages = parallel.pipeline
        self._eager_s = 0.0 if capture_sizes else profile.eager_layer_s * spec.num_layers

    @classmethod
    def build(
        cls,
        spec: Model | str,
        part: Gpu | str,
        parallel: Parallelism | None = None,
        *,
        weight_dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        engine_version: str = "0.16.0",
        async_scheduling: bool | None = None,
        enforce_eager: bool = False,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        fitted: Calibration | None = None,
    ) -> StepCostModel:
        """Assemble the cost model of one engine; what is None takes the release's default on that GPU.

        `fitted` replaces the shipped calibration of the GPU. Raises SpecError for a split that does not
        divide the model and UnknownNameError for names that nobody knows.
        """
        if isinstance(spec, str):
            named = model(spec)
            spec = named.model
            if weight_dtype == "auto" and named.weight_dtype:
                weight_dtype = named.weight_dtype
        part = gpu(part) if isinstance(part, str) else part
        parallel = parallel or Parallelism()
        parallel.check(spec)
        defaults = engine_defaults(engine_version, part)
        sizes = cudagraph_capture_sizes(
            max_num_seqs or defaults.max_num_seqs, max_num_batched_tokens or defaults.max_num_batched_tokens
        )
        return cls(
            spec,
            part,
            parallel,
            weights=model_weight_dtype(spec, weight_dtype),
            kv_bytes=kv_dtype_bytes(kv_cache_dtype),
            fitted=fitted or calibration(part.name),
            profile=engine_profile(engine_version),
            async_scheduling=defaults.async_scheduling if async_scheduling is None else async_scheduling,
            capture_sizes=() if enforce_eager else sizes,
        )

    @property
    def calibration_id(self) -> str:
        """Which fitted parameters this model uses."""
        return self.calibration.calibration_id

    def _prepare_attention(self, kv_bytes: int) -> None:
        spec, part, fit = self.model, self.gpu, self.calibration
        heads = spec.num_heads // self.parallel.tensor
        window = spec.sliding_window
        self._window_tokens = window.tokens if window else 0
        self._window_layers = window.num_layers if window else 0
        self._full_layers = spec.num_layers - self._window_layers
        if spec.mla:
            mla = spec.mla
            qk_dim, v_dim, prefill_kv_heads = (
                mla.qk_nope_head_dim + mla.qk_rope_head_dim,
                mla.v_head_dim,
                heads,
            )
            decode = DecodeKernel(
                part,
                fit.decode,
                heads,
                1,
                float(mla.latent_dim * kv_bytes),
                flops_per_token=2.0 * heads * (mla.latent_dim + mla.kv_lora_rank),
                compute_efficiency=fit.prefill.compute_efficiency,
            )
        else:
            qk_dim = v_dim = spec.head_dim
            prefill_kv_heads = self.parallel.kv_heads_per_gpu(spec)
            decode = DecodeKernel(part, fit.decode, heads, prefill_kv_heads, 2.0 * spec.head_dim * kv_bytes)
        self._decode_kernel = decode
        full = PrefillKernel(part, fit.prefill, heads, prefill_kv_heads, qk_dim, v_dim, float(kv_bytes))
        self._prefill_kernel = full
        self._window_prefill_kernel = PrefillKernel(
            part, fit.prefill, heads, prefill_kv_heads, qk_dim, v_dim, float(kv_bytes), self._window_tokens
        )
        self._prefix_s = self._prefix_up_projection_s()
        gap = fit.launch_gap_s
        self._decode_fixed_s = spec.num_layers * max(fit.decode.t0_s - gap, MIN_KERNEL_S)
        self._prefill_fixed_s = spec.num_layers * max(fit.prefill.t0_s - gap, MIN_KERNEL_S)

    def _prefix_up_projection_s(self) -> float:
        """MLA expands the latents of a cached prefix again for each chunk: seconds per prefix token, all
        layers.
        """
        mla = self.model.mla
        if not mla:
            return 0.0
        elements = self.model.num_heads // self.parallel.tensor * (mla.qk_nope_head_dim + mla.v_head_dim)
        flops = 2.0 * mla.kv_lora_rank * elements
        efficiency = self.calibration.gemm["bf16"].compute_efficiency
        return self.model.num_layers * flops / (self.gpu.bf16_flop_per_s * efficiency)

    def decode_step(
        self,
        num_decodes: int,
        decode_context_tokens: int,
        max_decode_context_tokens: int,
        window_context_tokens: tuple[int, ...] = (),
    ) -> StepCost:
        """Cost of a step of nothing but decodes of one token each; O(1). Equals step() of it bit for bit."""
        known = self._decodes.get(num_decodes)
        if known is None:
            known = self._decodes[num_decodes] = self._new_decodes(num_decodes)
        total_s, stage_s, largest_s, bound, host_s, batch = known
        kv_s = self._full_layers * batch_seconds(batch, decode_context_tokens, max_decode_context_tokens)
        if self._window_layers:
            context = self._window_context(num_decodes, decode_context_tokens, window_context_tokens)
            longest = min(max_decode_context_tokens, self._window_tokens)
            kv_s += self._window_layers * batch_seconds(batch, context, longest)
        gpu_s = total_s + kv_s
        if gpu_s < self._eager_s:
            gpu_s = self._eager_s
        if kv_s > largest_s:
            largest_s, bound = kv_s, "kv"
        if host_s > (gpu_s if self.async_scheduling else largest_s):
            bound = "host"
        stages = self._stages
        return StepCost(gpu_s, host_s, bound, gpu_s if stages == 1 else stage_s + kv_s / stages)

    def _window_context(self, decodes: int, context: int, window_context: tuple[int, ...]) -> int:
        """Tokens that windowed layers read; where the caller does not say, every context is cut at the
        window.
        """
        return window_context[0] if window_context else min(context, decodes * self._window_tokens)

    def _new_decodes(self, count: int) -> _Decodes:
        layers = self._layers[padded_tokens(count, self.capture_sizes)]
        head = self._heads[count]
        batch = self._decode_kernel.batch(count)
        extra_s = self._decode_fixed_s + self.model.num_layers * batch.extra_s
        terms = self._sum(layers, head, extra_s)
        largest = max(terms, key=lambda name: terms[name])
        total_s = layers.total_s + head.total_s + extra_s + self.profile.step_gap_s
        stage_s = (total_s - head.total_s) / self.parallel.pipeline + head.total_s
        host_s = self.profile.step_host_s + count * self.profile.request_host_s
        return _Decodes(total_s, stage_s, terms[largest], largest, host_s, batch)

    def _sum(self, layers: Row, head: Row, fixed_s: float) -> dict[str, float]:
        return {
            "compute": layers.compute_s + head.compute_s,
            "weights": layers.weights_s + head.weights_s,
            "comm": layers.comm_s + head.comm_s,
            "latency": layers.latency_s + head.latency_s + fixed_s + self.profile.step_gap_s,
        }

    def terms(self, shape: StepShape) -> dict[str, float]:
        """Seconds of the step by what it waits for: compute, weights, kv, comm, latency, host."""
        compute_s, weights_s, kv_s, comm_s, latency_s = self._parts(shape)
        return {
            "compute": compute_s,
            "weights": weights_s,
            "kv": kv_s,
            "comm": comm_s,
            "latency": latency_s,
            "host": self.profile.step_host_s + shape.num_requests * self.profile.request_host_s,
        }

    def _parts(self, shape: StepShape) -> tuple[float, float, float, float, float]:
        """The terms of a step on the GPU in the order of `BOUNDS`."""
        compute_s, weights_s, comm_s, latency_s, _ = self._layers[
            padded_tokens(shape.num_tokens, self.capture_sizes)
        ]
        head = self._heads[shape.num_sampled]
        compute_s += head.compute_s
        weights_s += head.weights_s
        comm_s += head.comm_s
        latency_s += head.latency_s + self.profile.step_gap_s
        kv_s = 0.0
        decodes = shape.num_decodes
        if decodes:
            known = self._decodes.get(decodes)
            if known is None:
                known = self._decodes[decodes] = self._new_decodes(decodes)
            batch, longest = known.batch, shape.max_decode_context_tokens
            latency_s += self._decode_fixed_s + self.model.num_layers * batch.extra_s
            kv_s = self._full_layers * batch_seconds(batch, shape.decode_context_tokens, longest)
            if self._window_layers:
                context = self._window_context(
                    decodes, shape.decode_context_tokens, shape.window_context_tokens
                )
                longest = min(longest, self._window_tokens)
                kv_s += self._window_layers * batch_seconds(batch, context, longest)
        if shape.prefill_chunks:
            attention_s, write_s = self._prefill(shape.prefill_chunks)
            compute_s += attention_s
            kv_s += write_s
            latency_s += self._prefill_fixed_s
        return compute_s, weights_s, kv_s, comm_s, latency_s

    def _prefill(self, chunks: Iterable[tuple[int, int]]) -> tuple[float, float]:
        """(attention, KV write) seconds of all layers."""
        attention_s, write_s = self._prefill_kernel.seconds(chunks)
        if self._window_layers:
            window_s, _ = self._window_prefill_kernel.seconds(chunks)
            attention_s = self._full_layers * attention_s + self._window_layers * window_s
        else:
            attention_s = self._full_layers * attention_s
        if self._prefix_s:
            attention_s += self._prefix_s * sum(prefix for _, prefix in chunks)
        return attention_s, self.model.num_layers * write_s

    def step(self, shape: StepShape) -> StepCost:
        """Cost of one step of any composition. Deterministic and pure."""
        decodes = shape.num_decodes
        if shape.num_tokens == decodes == shape.num_sampled and not shape.prefill_chunks:
            return self.decode_step(
                decodes,
                shape.decode_context_tokens,
                shape.max_decode_context_tokens,
                shape.window_context_tokens,
            )
        parts = self._parts(shape)
        gpu_s = max(sum(parts), self._eager_s)
        largest_s = max(parts)
        host_s = self.profile.step_host_s + shape.num_requests * self.profile.request_host_s
        bound = BOUNDS[parts.index(largest_s)]
        if host_s > (gpu_s if self.async_scheduling else largest_s):
            bound = "host"
        if self._stages == 1:
            return StepCost(gpu_s, host_s, bound, gpu_s)
        head_s = self._heads[shape.num_sampled].total_s
        return StepCost(gpu_s, host_s, bound, (gpu_s - head_s) / self._stages + head_s)
