"""A model from a Hugging Face `config.json`: the shapes that matter, and every fault of the file at once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from cost_models.errors import SpecError
from cost_models.models import Mla, Model, Moe, SlidingWindow

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16", "auto": "bf16"}
_UNGATED = ("opt", "bloom", "starcoder2", "gpt_bigcode", "gpt2", "gpt_neox", "falcon", "phi")
_DEFAULT_PATTERN = {"gpt_oss": 2, "gemma2": 2, "gemma3_text": 6, "gemma3": 6}


@dataclass(slots=True)
class _Reader:
    """Reads typed values from a config and collects what is wrong instead of stopping at it."""

    config: dict[str, object]
    faults: list[str] = field(default_factory=list)

    def whole(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under the first of `names` that is there; a fault if none is and no
        default.
        """
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self.faults.append(f"{name} must be a positive whole number, not {value!r}")
                return 1
            return value
        if default is None:
            self.faults.append(f"{' or '.join(names)} is missing")
            return 1
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A true-or-false value."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            self.faults.append(f"{name} must be true or false, not {value!r}")
            return default
        return value


def model_from_hf_config(path: Path | str) -> Model:
    """Read `config.json` (or the folder that holds it) of a decoder-only model.

    Understands dense, grouped-query, mixture-of-experts, multi-head latent and sliding-window attention
    models, and the language part of vision models. Raises SpecError with all faults of the file; parameters
    are counted in billions from the shapes.
    """
    place = Path(path)
    if place.is_dir():
        place = place / "config.json"
    try:
        loaded = json.loads(place.read_text(encoding="utf-8"))
    except OSError as fault:
        raise SpecError(str(place), [f"cannot be read: {fault.strerror or fault}"]) from fault
    except json.JSONDecodeError as fault:
        raise SpecError(str(place), [f"line {fault.lineno}: not JSON: {fault.msg}"]) from fault
    if not isinstance(loaded, dict):
        raise SpecError(str(place), ["expected a JSON object"])
    outer = cast("dict[str, object]", loaded)
    inner = outer.get("text_config")
    config = {**outer, **cast("dict[str, object]", inner)} if isinstance(inner, dict) else outer
    name = str(outer.get("_name_or_path") or place.resolve().parent.name)
    return _build(_Reader(config), name, str(place))


def _build(read: _Reader, name: str, place: str) -> Model:
    config = read.config
    kind = str(config.get("model_type", ""))
    layers = read.whole("num_hidden_layers", "n_layer", "num_layers")
    hidden = read.whole("hidden_size", "n_embd")
    heads = read.whole("num_attention_heads", "n_head")
    kv_heads = read.whole("num_key_value_heads", "num_kv_heads", default=heads)
    intermediate = read.whole("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    vocab = read.whole("vocab_size")
    mla = _mla(read)
    head_dim = read.whole("head_dim", default=max(hidden // heads, 1))
    if mla is None and "head_dim" not in config and hidden % heads:
        read.faults.append(f"num_attention_heads {heads} does not divide hidden_size {hidden}")
    if heads % kv_heads:
        read.faults.append(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    moe = _moe(read, layers, intermediate)
    window = _sliding_window(read, kind, layers)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in _DTYPES:
        read.faults.append(f"torch_dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    quantization = _quantization(read)
    max_len = read.whole("max_position_embeddings", "n_positions", "seq_length", default=2048)
    tied = read.flag("tie_word_embeddings", default=kind in ("gemma", "gemma2", "gemma3_text", "gemma3"))
    if read.faults:
        raise SpecError(place, read.faults)
    return Model(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=mla.v_head_dim if mla else head_dim,
        intermediate=intermediate,
        vocab=vocab,
        tied_embeddings=tied,
        gated_ffn=kind not in _UNGATED,
        qk_norm=kind.startswith(("qwen3", "gemma3")) or bool(config.get("use_qk_norm")),
        qkv_bias=bool(config.get("attention_bias")) or kind.startswith("qwen2"),
        dtype=_DTYPES[dtype],
        quantization=quantization,
        moe=moe,
        mla=mla,
        sliding_window=window,
        max_model_len=max_len,
        source=f"Hugging Face config of {name}",
    )


def _mla(read: _Reader) -> Mla | None:
    if not read.config.get("kv_lora_rank"):
        return None
    return Mla(
        q_lora_rank=read.whole("q_lora_rank", default=0) if read.config.get("q_lora_rank") else 0,
        kv_lora_rank=read.whole("kv_lora_rank"),
        qk_nope_head_dim=read.whole("qk_nope_head_dim"),
        qk_rope_head_dim=read.whole("qk_rope_head_dim"),
        v_head_dim=read.whole("v_head_dim"),
    )


def _moe(read: _Reader, layers: int, intermediate: int) -> Moe | None:
    config = read.config
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    if not any(config.get(name) for name in names):
        return None
    experts = read.whole(*names)
    top_k = read.whole("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    if top_k > experts:
        read.faults.append(f"num_experts_per_tok {top_k} exceeds {experts} experts")
    size = read.whole("moe_intermediate_size", default=intermediate)
    shared = config.get("n_shared_experts") or 0
    shared_size = config.get("shared_expert_intermediate_size")
    if isinstance(shared_size, int) and shared_size:
        shared = max(round(shared_size / size), 1)
    if not isinstance(shared, int):
        read.faults.append(f"n_shared_experts must be a whole number, not {shared!r}")
        shared = 0
    return Moe(_moe_layers(read, layers), experts, top_k, size, shared)


def _moe_layers(read: _Reader, layers: int) -> int:
    config = read.config
    dense = config.get("first_k_dense_replace") or 0
    only_dense = config.get("mlp_only_layers") or []
    step = (
        config.get("interleave_moe_layer_step")
        or config.get("decoder_sparse_step")
        or config.get("moe_layer_freq")
    )
    if not isinstance(dense, int) or not isinstance(only_dense, list):
        read.faults.append("first_k_dense_replace must be a number and mlp_only_layers a list")
        return layers
    step = step if isinstance(step, int) and step > 1 else 1
    return max((layers - dense - len(only_dense)) // step, 1)


def _sliding_window(read: _Reader, kind: str, layers: int) -> SlidingWindow | None:
    config = read.config
    chunk = config.get("attention_chunk_size")
    if isinstance(chunk, int) and chunk:
        full = config.get("no_rope_layers")
        windowed = sum(1 for x in full if x) if isinstance(full, list) and full else layers - layers // 4
        return SlidingWindow(chunk, windowed, chunked=True)
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return None
    tokens = read.whole("sliding_window")
    types = config.get("layer_types")
    if isinstance(types, list):
        windowed = sum(1 for layer in types if "sliding" in str(layer))
        if len(types) != layers:
            read.faults.append(f"layer_types names {len(types)} layers, num_hidden_layers is {layers}")
        return SlidingWindow(tokens, windowed) if windowed else None
    pattern = config.get("sliding_window_pattern") or _DEFAULT_PATTERN.get(kind)
    if isinstance(pattern, int) and pattern > 1:
        return SlidingWindow(tokens, layers - layers // pattern)
    return SlidingWindow(tokens, layers)


def _quantization(read: _Reader) -> str:
    """Weight dtype name of the checkpoint's own quantisation, "" without one."""
    table = read.config.get("quantization_config") or read.config.get("compression_config")
    if not isinstance(table, dict):
        return ""
    method = str(table.get("quant_method", "")).lower()
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin"):
        bits = table.get("bits", table.get("w_bit", 4))
        return "int4" if bits == 4 else "w8a16"
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method in ("mxfp4", "bitsandbytes", "modelopt"):
        return {"mxfp4": "mxfp4", "bitsandbytes": "int4"}.get(
            method, "nvfp4" if "FP4" in str(table) else "fp8"
        )
    if method == "compressed-tensors":
        return _compressed_tensors(read, table)
    read.faults.append(f"quantization_config: quant_method {method!r} is not known")
    return ""


def _compressed_tensors(read: _Reader, table: dict[str, object]) -> str:
    groups = table.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        read.faults.append("quantization_config: config_groups has no weights")
        return ""
    bits, kind = weights.get("num_bits"), weights.get("type")
    activations = isinstance(first, dict) and first.get("input_activations") is not None
    names = {(8, "float"): "fp8", (4, "float"): "nvfp4", (4, "int"): "int4"}
    if (bits, kind) == (8, "int"):
        return "int8" if activations else "w8a16"
    if (bits, kind) not in names:
        read.faults.append(f"quantization_config: {bits}-bit {kind} weights are not known")
        return ""
    return names[(cast(int, bits), cast(str, kind))]
