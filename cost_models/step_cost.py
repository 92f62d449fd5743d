"""How long a step takes: the operators of one forward pass added up, with what repeats remembered."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.calibration import Calibration, GemmParams, calibration
from cost_models.dtypes import WeightDtype, kv_dtype_bytes, weight_dtype
from cost_models.engines import (
    EngineProfile,
    cudagraph_capture_sizes,
    engine_defaults,
    engine_profile,
    padded_tokens,
)
from cost_models.gpus import Gpu, gpu
from cost_models.layers import attention_linears, ffn_linears, head_parameters
from cost_models.models import Model, model
from cost_models.operators.attention import decode_attention_s, prefill_attention_s, prefill_flops
from cost_models.operators.collectives import all_reduce_s, send_recv_s
from cost_models.operators.gemm import gemm
from cost_models.operators.small_ops import small_op_s
from cost_models.parallel import Parallelism
from cost_models.shapes import Seconds, StepCost, StepShape


def model_weight_dtype(spec: Model, name: str) -> WeightDtype:
    """The weight dtype called `name`; `auto` is the checkpoint's own."""
    return weight_dtype(spec.quantization or spec.dtype if name == "auto" else name)


@dataclass(slots=True)
class _Row:
    """What a token count costs whatever its contexts are."""

    fixed: Seconds
    total_s: float
    stage_s: float
    largest: float
    bound: str


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
        self.model = spec
        self.gpu = part
        self.parallel = parallel
        self.weights = weights
        self.calibration = fitted
        self.profile = profile
        self.async_scheduling = async_scheduling
        self.capture_sizes = capture_sizes
        self._kv_bytes = kv_bytes
        self._rows: dict[int, _Row] = {}
        self._heads: dict[int, Seconds] = {}
        self._decode_rows: dict[int, _Row] = {}
        self._prepare_attention()

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
        """Assemble the cost model of one engine; what is None takes the release's default on that GPU."""
        if isinstance(spec, str):
            named = model(spec)
            spec = named.model
            if weight_dtype == "auto" and named.weight_dtype:
                weight_dtype = named.weight_dtype
        part = gpu(part) if isinstance(part, str) else part
        parallel = parallel or Parallelism()
        parallel.check(spec)
        defaults = engine_defaults(engine_version, part)
        return cls(
            spec,
            part,
            parallel,
            weights=model_weight_dtype(spec, weight_dtype),
            kv_bytes=kv_dtype_bytes(kv_cache_dtype),
            fitted=fitted or calibration(part.name),
            profile=engine_profile(engine_version),
            async_scheduling=defaults.async_scheduling if async_scheduling is None else async_scheduling,
            capture_sizes=()
            if enforce_eager
            else cudagraph_capture_sizes(
                max_num_seqs or defaults.max_num_seqs,
                max_num_batched_tokens or defaults.max_num_batched_tokens,
            ),
        )

    @property
    def calibration_id(self) -> str:
        """Which fitted parameters this model uses."""
        return self.calibration.calibration_id

    def _prepare_attention(self) -> None:
        spec, parallel = self.model, self.parallel
        self._heads_per_gpu = spec.num_heads // parallel.tensor
        self._kv_heads = 1 if spec.mla else parallel.kv_heads_per_gpu(spec)
        if spec.mla:
            self._kv_token_bytes = float(spec.mla.latent_dim * self._kv_bytes)
        else:
            self._kv_token_bytes = 2.0 * self._kv_heads * spec.head_dim * self._kv_bytes
        windowed = spec.sliding_window.num_layers if spec.sliding_window else 0
        self._full_layers = spec.num_layers - windowed
        self._window_layers = windowed

    def _gemm_params(self, compute: str) -> GemmParams:
        return self.calibration.gemm.get(compute, self.calibration.gemm["bf16"])

    def _linear(self, tokens: int, n: int, k: int, quantized: bool) -> Seconds:
        dtype = self.weights
        compute, size = (dtype.compute, dtype.bytes_per_weight) if quantized else ("bf16", 2.0)
        return gemm(tokens, n, k, self.gpu, self._gemm_params(compute), weight_bytes=size, compute=compute)

    def _layers(self, tokens: int) -> Seconds:
        """All layers' work that depends on the token count alone."""
        spec, parallel, fit = self.model, self.parallel, self.calibration
        total = Seconds()
        for linear in attention_linears(spec, parallel, self.weights) + ffn_linears(spec, parallel, self.weights):
            total = total.plus(self._linear(tokens, linear.n, linear.k, linear.quantized).times(linear.count))
        hidden_bytes = 2.0 * tokens * spec.hidden
        inner_bytes = 2.0 * tokens * spec.intermediate / parallel.tensor
        qkv_bytes = 2.0 * tokens * (self._heads_per_gpu + 2 * self._kv_heads) * spec.head_dim
        per_layer = 2 * small_op_s(3.0 * hidden_bytes, self.gpu, fit.small_ops)
        per_layer += small_op_s(3.0 * inner_bytes, self.gpu, fit.small_ops)
        per_layer += small_op_s(2.0 * qkv_bytes, self.gpu, fit.small_ops)
        total = total.plus(Seconds(latency=per_layer * spec.num_layers))
        reduce_s = all_reduce_s(hidden_bytes, parallel.tensor, self.gpu, fit.all_reduce)
        total = total.plus(Seconds(comm=2 * spec.num_layers * reduce_s))
        if parallel.pipeline > 1:
            hop = send_recv_s(hidden_bytes, fit.send_recv)
            total = total.plus(Seconds(comm=(parallel.pipeline - 1) * hop))
        return total

    def _head(self, rows: int) -> Seconds:
        """Final norm, vocabulary projection and sampling of `rows` rows."""
        known = self._heads.get(rows)
        if known is not None:
            return known
        spec, fit = self.model, self.calibration
        vocab = head_parameters(spec, self.parallel) // spec.hidden
        cost = self._linear(rows, vocab, spec.hidden, False)
        cost = cost.plus(Seconds(latency=3 * small_op_s(8.0 * rows * spec.vocab, self.gpu, fit.small_ops)))
        self._heads[rows] = cost
        return cost

    def _row(self, tokens: int, rows: int) -> Seconds:
        layers = self._layers(tokens)
        head = self._head(rows)
        return layers.plus(head).plus(Seconds(latency=self.profile.step_gap_s))

    def _attention_fixed_s(self, t0_s: float) -> float:
        return max(t0_s - self.calibration.launch_gap_s, 1e-6) * self.model.num_layers

    def _decode_attention_s(self, decodes: int, context: int, window_context: int) -> float:
        fit = self.calibration.decode
        ctas = float(decodes * self._kv_heads)
        seconds = self._full_layers * decode_attention_s(context * self._kv_token_bytes, ctas, self.gpu, fit)
        if self._window_layers:
            moved = window_context * self._kv_token_bytes
            seconds += self._window_layers * decode_attention_s(moved, ctas, self.gpu, fit)
        return seconds

    def decode_step(
        self,
        num_decodes: int,
        decode_context_tokens: int,
        max_decode_context_tokens: int,
        window_context_tokens: tuple[int, ...] = (),
    ) -> StepCost:
        """Cost of a step with nothing but decodes of one token each; O(1). Equals step() of that shape bit for bit."""
        row = self._decode_rows.get(num_decodes)
        if row is None:
            row = self._decode_row(num_decodes)
        window = window_context_tokens[0] if window_context_tokens else 0
        kv_s = self._decode_attention_s(num_decodes, decode_context_tokens, window)
        gpu_s = row.total_s + kv_s
        host_s = self.profile.step_host_s + num_decodes * self.profile.request_host_s
        if host_s > (gpu_s if self.async_scheduling else max(row.largest, kv_s)):
            bound = "host"
        else:
            bound = "kv" if kv_s > row.largest else row.bound
        return StepCost(gpu_s, host_s, bound, row.stage_s + kv_s / self.parallel.pipeline)

    def _decode_row(self, num_decodes: int) -> _Row:
        fixed = self._row(padded_tokens(num_decodes, self.capture_sizes), num_decodes)
        fixed = fixed.plus(Seconds(latency=self._attention_fixed_s(self.calibration.decode.t0_s)))
        row = self._finish(fixed, num_decodes)
        self._decode_rows[num_decodes] = row
        return row

    def _finish(self, fixed: Seconds, rows: int) -> _Row:
        named = fixed._asdict()
        bound = max(named, key=lambda term: named[term])
        head_s = self._head(rows).total
        stage = (fixed.total - head_s) / self.parallel.pipeline + head_s
        return _Row(fixed, fixed.total, stage, named[bound], bound)

    def terms(self, shape: StepShape) -> dict[str, float]:
        """Seconds of the step by what it waits for: compute, weights, kv, comm, latency, host."""
        seconds = self._seconds(shape)
        host_s = self.profile.step_host_s + shape.num_requests * self.profile.request_host_s
        return seconds._asdict() | {"host": host_s}

    def _seconds(self, shape: StepShape) -> Seconds:
        fit = self.calibration
        fixed = self._row(padded_tokens(shape.num_tokens, self.capture_sizes), shape.num_sampled)
        latency = compute = kv_s = 0.0
        if shape.num_decodes:
            latency += self._attention_fixed_s(fit.decode.t0_s)
            window = shape.window_context_tokens[0] if shape.window_context_tokens else 0
            kv_s = self._decode_attention_s(shape.num_decodes, shape.decode_context_tokens, window)
        if shape.prefill_chunks:
            latency += self._attention_fixed_s(fit.prefill.t0_s)
            compute = sum(self._prefill_chunk_s(chunk, prefix) for chunk, prefix in shape.prefill_chunks)
        return fixed.plus(Seconds(compute=compute, kv=kv_s, latency=latency))

    def _prefill_chunk_s(self, chunk: int, prefix: int) -> float:
        spec = self.model
        qk = spec.mla.qk_nope_head_dim + spec.mla.qk_rope_head_dim if spec.mla else spec.head_dim
        v = spec.mla.v_head_dim if spec.mla else spec.head_dim
        moved = (chunk + prefix) * self._kv_token_bytes + 2.0 * chunk * self._heads_per_gpu * (qk + v)
        total = 0.0
        for layers, window in (
            (self._full_layers, None),
            (self._window_layers, spec.sliding_window.tokens if spec.sliding_window else None),
        ):
            if layers:
                flops = prefill_flops(chunk, prefix, self._heads_per_gpu, qk, v, window)
                tokens = float(chunk + prefix)
                total += layers * prefill_attention_s(flops, moved, tokens, self.gpu, self.calibration.prefill)
        return total

    def step(self, shape: StepShape) -> StepCost:
        """Cost of one step of any composition. Deterministic and pure."""
        plain = not shape.prefill_chunks and shape.num_tokens == shape.num_decodes == shape.num_sampled
        if plain and not shape.lora_tokens:
            return self.decode_step(
                shape.num_decodes,
                shape.decode_context_tokens,
                shape.max_decode_context_tokens,
                shape.window_context_tokens,
            )
        seconds = self._seconds(shape)
        gpu_s = seconds.total
        host_s = self.profile.step_host_s + shape.num_requests * self.profile.request_host_s
        named = seconds._asdict()
        bound = max(named, key=lambda term: named[term])
        if host_s > (gpu_s if self.async_scheduling else named[bound]):
            bound = "host"
        head_s = self._head(shape.num_sampled).total
        return StepCost(gpu_s, host_s, bound, (gpu_s - head_s) / self.parallel.pipeline + head_s)
