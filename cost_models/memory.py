"""How many KV blocks fit: what an engine takes from its share of GPU memory before it divides the rest into
blocks.

    KV = utilization · total - weights - max(forward, sampler) - non-torch - CUDA graphs,   blocks =
    floor(KV / block)

per GPU. Constants are facts measured from start-up logs of real engines; `data/engines.toml` has them by
release.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.deployment import Deployment
from cost_models.engines import entry_since, is_v1
from cost_models.errors import GIB, DoesNotFitError, SpecError
from cost_models.models import Model, Parallelism
from cost_models.weights import attention_linears, ffn_linears, weight_dtype, weights_bytes


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

    def beside(self, taken_bytes: float, more_bytes_per_token: int = 0) -> MemoryPlan:
        """The plan where others take some of the KV cache's memory, and room in it for every token.

        It may be left with no block at all.
        """
        left = self.kv_cache_bytes - taken_bytes
        per_token = self.bytes_per_token + more_bytes_per_token
        return replace(
            self,
            weights_bytes=self.weights_bytes + taken_bytes,
            kv_cache_bytes=left,
            bytes_per_token=per_token,
            num_gpu_blocks=_blocks(left, per_token, self.block_size),
        )


_USUAL_ERROR_BYTES = 0.5 * GIB
_LARGEST_TENSOR_PARALLEL = 64
_LORA_BYTES = 2
_PACKED = {"qkv": 3, "gate_up": 2}
"""Layers that vLLM has merged; each of the merged ones has an adapter of its own."""


def kv_bytes_per_token(deployment: Deployment) -> int:
    """KV-cache bytes of one token on one GPU, for the pipeline stage with the most layers.

    2 · L · max(kv_heads/TP, 1) · head_dim · b; MLA keeps L · latent · b on every rank, padded to 640 by V0
    engines.
    """
    spec, parallel, size = deployment.model, deployment.parallel, deployment.kv_element_bytes
    layers = -(-spec.num_layers // parallel.pipeline)
    if spec.mla:
        latent = spec.mla.latent_dim
        return layers * (latent if is_v1(deployment.engine_version) else -(-latent // 128) * 128) * size
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
    deployment: Deployment,
    *,
    sampler: str = "auto",
    enable_chunked_prefill: bool = True,
    total_memory_bytes: float | None = None,
) -> MemoryPlan:
    """Predict the KV blocks of one engine from per-GPU numbers.

    sampler: auto, native (PyTorch) or flashinfer. enable_chunked_prefill: without it, V0 engines profile a
    step of max_model_len tokens. total_memory_bytes: what CUDA reports, where it is known. Raises SpecError
    for a split that does not divide the model, and DoesNotFitError, with the arithmetic and the smallest
    tensor parallel size that would fit, when not a single block is left.
    """
    deployment.check()
    if sampler not in ("auto", "native", "flashinfer"):
        raise SpecError("memory plan", [f"sampler must be auto, native or flashinfer, not {sampler}"])
    total_bytes = total_memory_bytes or deployment.gpu.memory_bytes
    plan = _plan(deployment, sampler, enable_chunked_prefill, total_bytes)
    if plan.num_gpu_blocks >= 1:
        return plan
    # The smallest larger tensor parallel size that divides the model and holds one request of max_model_len.
    for tensor in range(deployment.parallel.tensor + 1, _LARGEST_TENSOR_PARALLEL + 1):
        split = replace(deployment, parallel=replace(deployment.parallel, tensor=tensor))
        try:
            split.check()
        except SpecError:
            continue
        larger = _plan(split, sampler, enable_chunked_prefill, total_bytes)
        if larger.kv_tokens >= (deployment.max_model_len or 1):
            raise DoesNotFitError(plan.arithmetic(), tensor)
    raise DoesNotFitError(plan.arithmetic(), None)


def _plan(deployment: Deployment, sampler: str, chunked: bool, total_bytes: float) -> MemoryPlan:
    spec, parallel = deployment.model, deployment.parallel
    facts = entry_since("memory", deployment.engine_version)
    tokens = deployment.max_num_batched_tokens
    if not chunked and not is_v1(deployment.engine_version) and deployment.max_model_len:
        tokens = deployment.max_model_len
    sampler_kind = sampler if sampler != "auto" else facts.text("sampler")
    non_torch = facts.numbers("non_torch_gib")
    doublings = min(max(parallel.tensor - 1, 0).bit_length(), len(non_torch) - 1)
    budget = deployment.gpu_memory_utilization * total_bytes
    weights = weights_bytes(spec, parallel, deployment.weight_dtype)
    forward = forward_bytes(spec, parallel, tokens)
    forward += spec.vision_profile_gib * GIB
    logit_bytes = 0.0 if spec.is_pooling else facts.number(f"{sampler_kind}_bytes_per_logit", 0.0)
    sampling = float(deployment.max_num_seqs * spec.vocab) * logit_bytes
    graphs = 0.0 if deployment.enforce_eager else facts.number("cuda_graph_share", 0.0) * weights
    left = budget - weights - max(forward, sampling) - non_torch[doublings] * GIB - graphs
    per_token = kv_bytes_per_token(deployment)
    return MemoryPlan(
        model=spec.name,
        gpu=deployment.gpu.name,
        tensor_parallel=parallel.tensor,
        gpu_memory_utilization=deployment.gpu_memory_utilization,
        total_bytes=total_bytes,
        budget_bytes=budget,
        weights_bytes=weights,
        forward_bytes=forward,
        sampler_bytes=sampling,
        non_torch_bytes=non_torch[doublings] * GIB,
        cuda_graph_bytes=graphs,
        kv_cache_bytes=left,
        bytes_per_token=per_token,
        block_size=deployment.block_size,
        num_gpu_blocks=_blocks(left, per_token, deployment.block_size),
    )


def _blocks(kv_cache_bytes: float, bytes_per_token: int, block_size: int) -> int:
    return max(int(kv_cache_bytes // (bytes_per_token * block_size)), 0)


def lora_bytes(spec: Model, parallel: Parallelism, max_loras: int, rank: int) -> float:
    """GPU memory that vLLM sets aside for adapters, bytes a GPU: for each slot two matrices beside every
    linear layer, rank x inputs and outputs x rank, in 16 bits. Experts have none.
    """
    dtype = weight_dtype("bf16")
    linears = attention_linears(spec, parallel, dtype) + ffn_linears(spec, parallel, dtype)
    elements = sum(
        rank * (_PACKED.get(linear.name, 1) * linear.k + linear.n) * linear.count
        for linear in linears
        if linear.name != "router"
    )
    return float(_LORA_BYTES * max_loras * elements)
