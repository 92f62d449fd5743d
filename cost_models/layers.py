"""The linear layers of a model on one GPU: which matrix products a token passes through, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.dtypes import WeightDtype
from cost_models.models import Model
from cost_models.parallel import Parallelism


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


def expert_parameters(model: Model, parallel: Parallelism) -> float:
    """Routed-expert weights on one GPU, all layers: experts spread over `expert`, else each sliced by
    `tensor`.
    """
    if not model.moe:
        return 0.0
    moe = model.moe
    one = model.ffn_matrices * model.hidden * moe.intermediate
    return (
        one * moe.num_experts * moe.num_layers / (parallel.expert if parallel.expert > 1 else parallel.tensor)
    )


def head_parameters(model: Model, parallel: Parallelism) -> int:
    """Weights of one vocabulary matrix (embedding or head) on one GPU, rows padded to a multiple of 64 and
    split.
    """
    return -(-model.vocab // 64) * 64 * model.hidden // parallel.tensor
