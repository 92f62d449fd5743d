"""Models as facts, and how they are split: the shapes that decide how many bytes and FLOPs a token costs."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.errors import SpecError


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture-of-experts layers: how many of them, and the shape of one."""

    num_layers: int
    num_experts: int
    top_k: int
    intermediate: int
    num_shared_experts: int = 0


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: ranks and head sizes (DeepSeek-V2/V3, Kimi-K2). `q_lora_rank` 0 = no
    query LoRA.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def latent_dim(self) -> int:
        """Elements per token and layer in the KV cache: one latent and one rope key for all heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """`num_layers` of the model attend only to the last `tokens`, or, if `chunked`, to their own aligned
    chunk.
    """

    tokens: int
    num_layers: int
    chunked: bool = False

    def attended(self, num_tokens: int) -> int:
        """Of a text of so many tokens, those that the next token attends to in these layers."""
        return num_tokens % self.tokens if self.chunked else min(num_tokens, self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer. Sizes in elements; `quantization` is the checkpoint's own scheme ("" =
    none).
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False
    gated_ffn: bool = True
    qk_norm: bool = False
    qkv_bias: bool = False
    dtype: str = "bf16"
    quantization: str = ""
    moe: Moe | None = None
    mla: Mla | None = None
    sliding_window: SlidingWindow | None = None
    max_model_len: int | None = None
    is_pooling: bool = False
    vision_gib: float = 0.0
    vision_profile_gib: float = 0.0
    params_b: float = 0.0
    source: str = ""

    @property
    def ffn_matrices(self) -> int:
        """Weight matrices of one feed-forward block: gate, up and down, or up and down alone."""
        return 3 if self.gated_ffn else 2

    @property
    def num_moe_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        return self.moe.num_layers if self.moe else 0

    @property
    def num_dense_layers(self) -> int:
        """Layers with an ordinary feed-forward block."""
        return self.num_layers - self.num_moe_layers

    @property
    def kind(self) -> str:
        """dense, moe or mla: the class that error tables group models by."""
        return "mla" if self.mla else "moe" if self.moe else "dense"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel groups of one deployment.

    `tensor` × `pipeline` GPUs make one engine. `data` engines run side by side and share the experts of a
    mixture-of-experts model when `expert` > 1: experts are then whole and spread over `expert` GPUs
    (normally tensor × data) instead of being sliced by `tensor`.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.tensor * self.pipeline * self.data

    def check(self, model: Model) -> None:
        """Raise SpecError, listing every way in which this split does not divide the model."""
        faults = [
            f"{name} parallel size must be at least 1, not {size}"
            for name, size in (
                ("tensor", self.tensor),
                ("pipeline", self.pipeline),
                ("data", self.data),
                ("expert", self.expert),
            )
            if size < 1
        ]
        if not faults:
            faults = list(self._indivisible(model))
        if faults:
            raise SpecError(f"{model.name} on TP {self.tensor} x PP {self.pipeline}", faults)

    def _indivisible(self, model: Model) -> list[str]:
        faults = []
        tp, kv = self.tensor, model.num_kv_heads
        if model.num_heads % tp:
            faults.append(f"tensor parallel size {tp} does not divide {model.num_heads} attention heads")
        if not model.mla and kv % tp and tp % kv:
            faults.append(
                f"tensor parallel size {tp} neither divides {kv} KV heads nor is a multiple of them"
            )
        if self.pipeline > model.num_layers:
            faults.append(f"pipeline parallel size {self.pipeline} exceeds {model.num_layers} layers")
        if self.expert > 1 and not model.moe:
            faults.append(f"expert parallel size {self.expert} needs a mixture-of-experts model")
        elif self.expert > 1 and model.moe and model.moe.num_experts % self.expert:
            faults.append(
                f"expert parallel size {self.expert} does not divide {model.moe.num_experts} experts"
            )
        return faults

    def kv_heads_per_gpu(self, model: Model) -> int:
        """KV heads that one GPU holds: at least one, so they are replicated when there are fewer heads than
        GPUs.
        """
        return max(model.num_kv_heads // self.tensor, 1)
