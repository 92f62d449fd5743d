"""The weights of a model on one GPU: their dtypes, the matrix products with them, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.catalog import nearest
from cost_models.errors import GIB, UnknownNameError
from cost_models.models import Model, Parallelism


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """One quantisation scheme.

    `bytes_per_weight` includes scales and zero points; `compute` is the dtype of the matrix product
    (weight-only schemes multiply in bf16); `scope` says what is quantised: `linears` (all block linears),
    `ffn` (feed-forward only), `experts` (routed experts only) or `none`. Embedding, head, router and norms
    always stay at 16 bit.
    Sizes: int4 with groups of 128 takes 0.52 B, nvfp4 0.56, mxfp4 0.531 (measured weight sizes of engine
    start-up logs agree within 0.4 % median).
    """

    name: str
    bytes_per_weight: float
    compute: str
    scope: str


_SCHEMES = {
    s.name: s
    for s in (
        WeightDtype("bf16", 2.0, "bf16", "none"),
        WeightDtype("fp16", 2.0, "fp16", "none"),
        WeightDtype("fp32", 4.0, "bf16", "linears"),
        WeightDtype("fp8", 1.0, "fp8", "linears"),
        WeightDtype("fp8-ffn", 1.0, "fp8", "ffn"),
        WeightDtype("int8", 1.0, "int8", "linears"),
        WeightDtype("w8a16", 1.0, "bf16", "linears"),
        WeightDtype("int4", 0.52, "bf16", "linears"),
        WeightDtype("int4-experts", 0.5625, "bf16", "experts"),
        WeightDtype("nvfp4", 0.56, "fp4", "linears"),
        WeightDtype("mxfp4", 0.531, "bf16", "experts"),
    )
}
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp8_e4m3": "fp8",
    "w8a8": "int8",
    "int8-w8a8": "int8",
    "int8-w8a16": "w8a16",
    "int4-gptq": "int4",
    "gptq": "int4",
    "awq": "int4",
    "w4a16": "int4",
    "fp4": "nvfp4",
}

KV_DTYPE_BYTES = {
    "auto": 2,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


def weight_dtype(name: str) -> WeightDtype:
    """The scheme called `name` (or an alias such as `bfloat16`, `awq`, `w8a8`)."""
    key = _ALIASES.get(name, name)
    if key not in _SCHEMES:
        raise UnknownNameError("weight dtype", name, nearest(name, [*_SCHEMES, *_ALIASES]))
    return _SCHEMES[key]


def model_weight_dtype(spec: Model, name: str) -> WeightDtype:
    """The weight dtype called `name`; `auto` is the checkpoint's own."""
    return weight_dtype(spec.quantization or spec.dtype if name == "auto" else name)


def kv_dtype_bytes(name: str) -> int:
    """Bytes of one KV-cache element: 2 for `auto`, bf16 and fp16, 1 for the fp8 formats."""
    if name not in KV_DTYPE_BYTES:
        raise UnknownNameError("kv cache dtype", name, nearest(name, KV_DTYPE_BYTES))
    return KV_DTYPE_BYTES[name]


@dataclass(frozen=True, slots=True)
class Linear:
    """`count` matrix products of one shape on one GPU: n outputs, k inputs; `quantized` if the weight dtype
    covers it.
    """

    name: str
    n: int
    k: int
    count: int
    quantized: bool

    @property
    def parameters(self) -> int:
        """Weights of all of them."""
        return self.n * self.k * self.count


def attention_linears(model: Model, parallel: Parallelism, dtype: WeightDtype) -> list[Linear]:
    """Projections around attention, all layers. MLA's up-projection is counted once: absorbed or not, same
    FLOPs.
    """
    tp, layers, hidden = parallel.tensor, model.num_layers, model.hidden
    quantized = dtype.scope == "linears"
    heads = model.num_heads // tp
    if model.mla:
        mla = model.mla
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla.q_lora_rank:
            down = Linear("q_kv_down", mla.q_lora_rank + mla.latent_dim, hidden, layers, quantized)
            up = Linear("q_up", heads * qk, mla.q_lora_rank, layers, quantized)
        else:
            down = Linear("kv_down", mla.latent_dim, hidden, layers, quantized)
            up = Linear("q", heads * qk, hidden, layers, quantized)
        kv_up = Linear(
            "kv_up", heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank, layers, quantized
        )
        return [down, up, kv_up, Linear("o", hidden, heads * mla.v_head_dim, layers, quantized)]
    kv_heads = parallel.kv_heads_per_gpu(model)
    return [
        Linear("qkv", (heads + 2 * kv_heads) * model.head_dim, hidden, layers, quantized),
        Linear("o", hidden, heads * model.head_dim, layers, quantized),
    ]


def ffn_linears(model: Model, parallel: Parallelism, dtype: WeightDtype) -> list[Linear]:
    """Dense feed-forward blocks, shared experts and routers, all layers; routed experts are apart."""
    tp, hidden = parallel.tensor, model.hidden
    quantized = dtype.scope in ("linears", "ffn")
    up_matrices = model.ffn_matrices - 1
    linears = []
    if model.num_dense_layers:
        inner = -(-model.intermediate // tp)
        linears += [
            Linear("gate_up", up_matrices * inner, hidden, model.num_dense_layers, quantized),
            Linear("down", hidden, inner, model.num_dense_layers, quantized),
        ]
    if model.moe:
        linears.append(Linear("router", model.moe.num_experts, hidden, model.moe.num_layers, False))
        if model.moe.num_shared_experts:
            inner = -(-model.moe.intermediate * model.moe.num_shared_experts // tp)
            linears += [
                Linear("shared_gate_up", up_matrices * inner, hidden, model.moe.num_layers, quantized),
                Linear("shared_down", hidden, inner, model.moe.num_layers, quantized),
            ]
    return linears


def expert_parameters(model: Model, parallel: Parallelism, dtype: WeightDtype) -> float:
    """Routed-expert weights on one GPU, all layers, padding included.

    Experts are spread over `expert` GPUs, else each is sliced by `tensor`. mxfp4 kernels pad the hidden
    size to
    256 and the slice to 128 (gpt-oss-20b and -120b logged 1.09 and 1.14 times the bare weights).
    """
    if not model.moe:
        return 0.0
    moe = model.moe
    local, inner, hidden = float(moe.num_experts), float(moe.intermediate), float(model.hidden)
    if parallel.expert > 1:
        local /= parallel.expert
    else:
        inner /= parallel.tensor
    if dtype.name == "mxfp4":
        hidden, inner = -(-hidden // 256) * 256.0, -(-inner // 128) * 128.0
    return model.ffn_matrices * hidden * inner * local * moe.num_layers


def head_parameters(model: Model, parallel: Parallelism) -> int:
    """Weights of one vocabulary matrix (embedding or head) on one GPU, rows padded to a multiple of 64 and
    split.
    """
    return -(-model.vocab // 64) * 64 * model.hidden // parallel.tensor


def weights_bytes(spec: Model, parallel: Parallelism, dtype: WeightDtype) -> float:
    """Bytes of all weights on one GPU, for the pipeline stage with the most layers.

    Linear layers and experts at the size of `dtype` where it covers them, everything else at 2 bytes;
    embedding and head split by TP, KV heads repeated where there are fewer than GPUs, norms and routers on
    every rank.
    """
    linears = attention_linears(spec, parallel, dtype) + ffn_linears(spec, parallel, dtype)
    layers = sum(x.parameters * (dtype.bytes_per_weight if x.quantized else 2.0) for x in linears)
    layers += expert_parameters(spec, parallel, dtype) * (
        2.0 if dtype.scope == "none" else dtype.bytes_per_weight
    )
    norms = 2 * spec.hidden + (2 * spec.head_dim if spec.qk_norm else 0)
    layers += 2.0 * spec.num_layers * norms
    share = -(-spec.num_layers // parallel.pipeline) / spec.num_layers
    vocabulary = 2.0 * head_parameters(spec, parallel)
    one_matrix = spec.tied_embeddings or parallel.pipeline > 1
    if not one_matrix:
        vocabulary *= 2.0
    return layers * share + vocabulary + spec.vision_gib * GIB / parallel.tensor
