"""How many KV blocks fit: what an engine takes from its share of GPU memory before it divides the rest into
blocks.

    KV = utilization · total - weights - max(forward, sampler) - non-torch - CUDA graphs,   blocks =
    floor(KV / block)

per GPU. Constants are facts measured from start-up logs of real engines; `data/engines.toml` has them by
release.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.catalog import number, numbers, text
from cost_models.dtypes import WeightDtype, kv_dtype_bytes
from cost_models.engines import EngineDefaults, engine_defaults, entry_since, is_v1
from cost_models.errors import GIB, DoesNotFitError, SpecError
from cost_models.gpus import Gpu, gpu
from cost_models.layers import weights_bytes
from cost_models.models import Model, model
from cost_models.parallel import Parallelism
from cost_models.step_cost import model_weight_dtype


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one GPU, in bytes, and the KV cache that is left of it.

    forward_bytes and sampler_bytes are the two peaks of the engine's profiling run; the larger one counts.
    bytes_per_token: KV cache of one token on one GPU. `margin_note` says when so little is left that the
    usual error of the plan (0.5 GiB) is a large part of it.
    """

    model: str
    gpu: str
    tensor_parallel: int
    gpu_memory_utilization: float
    total_bytes: float
    budget_bytes: float
    weights_bytes: float
    forward_bytes: float
    sampler_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    kv_cache_bytes: float
    bytes_per_token: int
    block_size: int
    num_gpu_blocks: int

    @property
    def activation_bytes(self) -> float:
        """Peak of the profiling run: forward pass or sampler, whichever is larger."""
        return max(self.forward_bytes, self.sampler_bytes)

    @property
    def kv_tokens(self) -> int:
        """Tokens the whole replica can keep.

        Every GPU of a replica holds its share of the same blocks, so this is not multiplied by the number
        of GPUs.
        """
        return self.num_gpu_blocks * self.block_size

    @property
    def margin_note(self) -> str:
        """A warning where the margin is thin, else ""."""
        share = _USUAL_ERROR_BYTES / self.kv_cache_bytes
        if share < 0.1:
            return ""
        left = self.kv_cache_bytes / GIB
        return f"only {left:.1f} GiB are left for KV: an error of 0.5 GiB is {share:.0%} of the tokens"

    def arithmetic(self) -> str:
        """The sum in one line, in GiB."""
        terms = (self.weights_bytes, self.activation_bytes, self.non_torch_bytes, self.cuda_graph_bytes)
        named = zip(("weights", "activation", "non-torch", "CUDA graphs"), terms, strict=True)
        taken = " - ".join(f"{value / GIB:.2f} {name}" for name, value in named)
        return (
            f"{self.model} on {self.gpu} with TP {self.tensor_parallel}: "
            f"{self.gpu_memory_utilization:g} x {self.total_bytes / GIB:.2f} GiB - {taken} = "
            f"{self.kv_cache_bytes / GIB:.2f} GiB for KV cache"
        )


_USUAL_ERROR_BYTES = 0.5 * GIB
_LARGEST_TENSOR_PARALLEL = 64


def kv_bytes_per_token(
    spec: Model, parallel: Parallelism, kv_cache_dtype: str = "auto", engine_version: str = "0.16.0"
) -> int:
    """KV-cache bytes of one token on one GPU, for the pipeline stage with the most layers.

    2 · L · max(kv_heads/TP, 1) · head_dim · b; MLA keeps L · latent · b on every rank, padded to 640 by V0
    engines.
    """
    size = kv_dtype_bytes(kv_cache_dtype)
    layers = -(-spec.num_layers // parallel.pipeline)
    if spec.mla:
        latent = spec.mla.latent_dim if is_v1(engine_version) else -(-spec.mla.latent_dim // 128) * 128
        return layers * latent * size
    return 2 * layers * parallel.kv_heads_per_gpu(spec) * spec.head_dim * size


def forward_bytes(spec: Model, parallel: Parallelism, num_tokens: int) -> float:
    """Peak activation of a forward pass of `num_tokens` on one GPU.

    2 B · (3·I/TP + 4·h) a token for dense models, 2 B · (top_k·(3·I_moe/TP + h) + 4·h) for experts: measured
    119-121 kB a token for Llama-3.1-8B against 118.8 by the formula, 86.5 against 92 kB for MiniMax on TP 4.
    """
    tensor = parallel.tensor
    if spec.moe:
        inner = spec.moe.top_k * (3.0 * spec.moe.intermediate / tensor + spec.hidden)
    else:
        inner = 3.0 * spec.intermediate / tensor
    return 2.0 * num_tokens * (inner + 4.0 * spec.hidden)


def memory_plan(
    spec: Model | str,
    part: Gpu | str,
    parallel: Parallelism | None = None,
    *,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int = 16,
    engine_version: str = "0.16.0",
    enforce_eager: bool = False,
    sampler: str = "auto",
    enable_chunked_prefill: bool = True,
    total_memory_bytes: float | None = None,
) -> MemoryPlan:
    """Predict the KV blocks of one engine from per-GPU numbers; what is None takes the release's default.

    sampler: auto, native (PyTorch) or flashinfer. total_memory_bytes: what CUDA reports, where it is known.
    Raises SpecError for a split that does not divide the model, and DoesNotFitError, with the arithmetic
    and the smallest tensor parallel size that would fit, when not a single block is left.
    """
    if isinstance(spec, str):
        named = model(spec)
        spec = named.model
        if weight_dtype == "auto" and named.weight_dtype:
            weight_dtype = named.weight_dtype
    part = gpu(part) if isinstance(part, str) else part
    parallel = parallel or Parallelism()
    parallel.check(spec)
    request = _Request(
        spec=spec,
        part=part,
        defaults=engine_defaults(engine_version, part),
        dtype=model_weight_dtype(spec, weight_dtype),
        kv_cache_dtype=kv_cache_dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        utilization=gpu_memory_utilization,
        block_size=block_size,
        engine_version=engine_version,
        enforce_eager=enforce_eager,
        sampler=sampler,
        chunked=enable_chunked_prefill,
        total_bytes=total_memory_bytes or part.memory_bytes,
    )
    request.check()
    plan = request.plan(parallel)
    if plan.num_gpu_blocks < 1:
        raise DoesNotFitError(plan.arithmetic(), request.smallest_that_fits(parallel))
    return plan


@dataclass(frozen=True, slots=True)
class _Request:
    """Everything that a plan depends on except how the model is split."""

    spec: Model
    part: Gpu
    defaults: EngineDefaults
    dtype: WeightDtype
    kv_cache_dtype: str
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    utilization: float | None
    block_size: int
    engine_version: str
    enforce_eager: bool
    sampler: str
    chunked: bool
    total_bytes: float

    def check(self) -> None:
        """Raise SpecError, listing all values that make no sense."""
        faults = []
        if self.utilization is not None and not 0.0 < self.utilization <= 1.0:
            faults.append(f"gpu_memory_utilization must be in (0, 1], not {self.utilization:g}")
        if self.block_size < 1:
            faults.append(f"block_size must be at least 1, not {self.block_size}")
        for name, value in (
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
        ):
            if value is not None and value < 1:
                faults.append(f"{name} must be at least 1, not {value}")
        if self.sampler not in ("auto", "native", "flashinfer"):
            faults.append(f"sampler must be auto, native or flashinfer, not {self.sampler}")
        if faults:
            raise SpecError(f"memory plan of {self.spec.name}", faults)

    def plan(self, parallel: Parallelism) -> MemoryPlan:
        spec, facts = self.spec, entry_since("memory", self.engine_version)
        utilization = self.utilization or self.defaults.gpu_memory_utilization
        seqs = self.max_num_seqs or self.defaults.max_num_seqs
        tokens = self.max_num_batched_tokens or self.defaults.max_num_batched_tokens
        if not self.chunked and not is_v1(self.engine_version) and self.max_model_len:
            tokens = self.max_model_len
        sampler_kind = self.sampler if self.sampler != "auto" else text(facts, "sampler")
        non_torch = numbers(facts, "non_torch_gib")
        doublings = min(max(parallel.tensor - 1, 0).bit_length(), len(non_torch) - 1)
        budget = utilization * self.total_bytes
        weights = weights_bytes(spec, parallel, self.dtype)
        forward = forward_bytes(spec, parallel, tokens)
        forward += spec.vision_profile_gib * GIB
        logit_bytes = 0.0 if spec.is_pooling else number(facts, f"{sampler_kind}_bytes_per_logit")
        sampler = float(seqs * spec.vocab) * logit_bytes
        graphs = 0.0 if self.enforce_eager else number(facts, "cuda_graph_share") * weights
        left = budget - weights - max(forward, sampler) - non_torch[doublings] * GIB - graphs
        per_token = kv_bytes_per_token(spec, parallel, self.kv_cache_dtype, self.engine_version)
        return MemoryPlan(
            model=spec.name,
            gpu=self.part.name,
            tensor_parallel=parallel.tensor,
            gpu_memory_utilization=utilization,
            total_bytes=self.total_bytes,
            budget_bytes=budget,
            weights_bytes=weights,
            forward_bytes=forward,
            sampler_bytes=sampler,
            non_torch_bytes=non_torch[doublings] * GIB,
            cuda_graph_bytes=graphs,
            kv_cache_bytes=left,
            bytes_per_token=per_token,
            block_size=self.block_size,
            num_gpu_blocks=max(int(left // (per_token * self.block_size)), 0),
        )

    def smallest_that_fits(self, parallel: Parallelism) -> int | None:
        """The smallest larger tensor parallel size that divides the model and holds one request of
        max_model_len.

        Without a max_model_len, one block is enough.
        """
        needed = self.max_model_len or 1
        for tensor in range(parallel.tensor + 1, _LARGEST_TENSOR_PARALLEL + 1):
            try:
                split = Parallelism(tensor, parallel.pipeline, parallel.data, parallel.expert)
                split.check(self.spec)
            except SpecError:
                continue
            if self.plan(split).kv_tokens >= needed:
                return tensor
        return None
