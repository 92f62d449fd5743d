"""How many KV blocks fit: what the engine subtracts from its share of GPU memory before it divides the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.dtypes import WeightDtype, kv_dtype_bytes
from cost_models.engines import engine_defaults, version_key
from cost_models.errors import GIB, DoesNotFitError
from cost_models.gpus import Gpu, gpu
from cost_models.layers import attention_linears, expert_parameters, ffn_linears, head_parameters
from cost_models.models import Model, model
from cost_models.parallel import Parallelism
from cost_models.step_cost import model_weight_dtype


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one GPU, in bytes, and the KV cache that is left.

    budget_bytes = gpu_memory_utilization · total_bytes; kv_cache_bytes = budget - weights - activation -
    non_torch - cuda_graph. `activation_bytes` is the larger of the forward pass and the sampler's dummy
    run.
    """

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
        """Tokens the whole replica can keep: blocks are per GPU and every GPU of a replica holds the same
        ones.
        """
        return self.num_gpu_blocks * self.block_size


def weights_bytes(spec: Model, parallel: Parallelism, dtype: WeightDtype) -> float:
    """Bytes of all weights on one GPU of the pipeline stage with the most layers."""
    linears = attention_linears(spec, parallel, dtype) + ffn_linears(spec, parallel, dtype)
    total = sum(x.parameters * (dtype.bytes_per_weight if x.quantized else 2.0) for x in linears)
    expert_size = 2.0 if dtype.scope == "none" else dtype.bytes_per_weight
    total += expert_parameters(spec, parallel) * expert_size
    total += 2.0 * spec.num_layers * 2 * spec.hidden
    total /= parallel.pipeline
    vocab = 2.0 * head_parameters(spec, parallel)
    return total + (vocab if spec.tied_embeddings or parallel.pipeline > 1 else 2 * vocab)


def kv_bytes_per_token(spec: Model, parallel: Parallelism, kv_cache_dtype: str) -> int:
    """KV-cache bytes of one token on one GPU: 2·L·kv_heads·head_dim·b, MLA L·latent·b on every rank."""
    size = kv_dtype_bytes(kv_cache_dtype)
    layers = -(-spec.num_layers // parallel.pipeline)
    if spec.mla:
        return layers * spec.mla.latent_dim * size
    return 2 * layers * parallel.kv_heads_per_gpu(spec) * spec.head_dim * size


def forward_bytes(spec: Model, parallel: Parallelism, num_tokens: int) -> float:
    """Peak activation of a forward pass of `num_tokens`: 2 B · (3·I/TP + 4·h) a token, MoE as its top-k
    experts.
    """
    tp = parallel.tensor
    if spec.moe:
        inner = spec.moe.top_k * (3.0 * spec.moe.intermediate / tp + spec.hidden)
    else:
        inner = 3.0 * spec.intermediate / tp
    return 2.0 * num_tokens * (inner + 4.0 * spec.hidden)


def _sampler_bytes_per_logit(engine_version: str) -> float:
    key = version_key(engine_version)
    return 38.6 if key < (0, 11) else 13.0 if key < (0, 17) else 4.0


def _non_torch_gib(tensor: int) -> float:
    return {1: 0.12, 2: 0.55, 4: 0.8, 8: 2.3}.get(tensor, 2.3 if tensor > 8 else 0.8)


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
) -> MemoryPlan:
    """Predict the KV blocks of one engine. Raises DoesNotFitError when nothing is left, SpecError for a bad
    split.
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
    dtype = model_weight_dtype(spec, weight_dtype)
    seqs = max_num_seqs or defaults.max_num_seqs
    tokens = max_num_batched_tokens or defaults.max_num_batched_tokens
    utilization = gpu_memory_utilization or defaults.gpu_memory_utilization
    budget = utilization * part.memory_bytes
    weights = weights_bytes(spec, parallel, dtype)
    forward = forward_bytes(spec, parallel, tokens)
    sampler = seqs * spec.vocab * _sampler_bytes_per_logit(engine_version)
    non_torch = _non_torch_gib(parallel.tensor) * GIB
    graphs = 0.0 if enforce_eager or version_key(engine_version) < (0, 21) else 1.0 * GIB
    left = budget - weights - max(forward, sampler) - non_torch - graphs
    per_token = kv_bytes_per_token(spec, parallel, kv_cache_dtype)
    blocks = int(left // (per_token * block_size))
    if blocks < 1:
        raise DoesNotFitError(f"{spec.name} does not fit on {part.name}", None)
    return MemoryPlan(
        total_bytes=part.memory_bytes,
        budget_bytes=budget,
        weights_bytes=weights,
        forward_bytes=forward,
        sampler_bytes=sampler,
        non_torch_bytes=non_torch,
        cuda_graph_bytes=graphs,
        kv_cache_bytes=left,
        bytes_per_token=per_token,
        block_size=block_size,
        num_gpu_blocks=blocks,
    )
