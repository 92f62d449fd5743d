"""A model from a Hugging Face `config.json`: the shapes that matter, and every fault of the file at once.

Only layers that the cost models know are read: attention over all or the last tokens, with grouped or latent
keys and values, and dense or mixture-of-experts feed-forward blocks. Everything else is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from cost_models.catalog import Fields
from cost_models.errors import SpecError
from cost_models.models import Mla, Model, Moe, SlidingWindow

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16", "auto": "bf16"}
_UNGATED = ("opt", "bloom", "starcoder2", "gpt_bigcode", "gpt2", "gpt_neox", "falcon", "phi", "nemotron")
_DEFAULT_PATTERN = {
    "gpt_oss": 2,
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3": 6,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
}
"""Of how many layers the last is a full one, where a config does not say (defaults of transformers 5.20)."""

_TIED_TYPES = """
bloom cohere cohere2 ernie4_5 ernie4_5_moe falcon gemma gemma2 gemma3 gemma3_text gpt2 gpt_bigcode opt smollm3
starcoder2
"""
_TIED = frozenset(_TIED_TYPES.split())
"""Whose embedding is also the head where a config does not say (defaults of transformers 5.20)."""

_KNOWN_TYPES = """
baichuan bloom cohere cohere2 deepseek deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone exaone4
falcon gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_text gpt2 gpt_bigcode
gpt_neox gpt_oss granite granitemoe granitemoehybrid granitemoeshared hunyuan_v1_dense hunyuan_v1_moe
internlm internlm2 internlm3 internvl internvl_chat kimi_k2 kimi_vl llama llama4 llama4_text llava
llava_next mimo minicpm minicpm3 minimax_m2 mistral mistral3 mixtral nemotron olmo olmo2 olmo3 olmoe opt
phi phi3 phimoe pixtral qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe
qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text seed_oss smollm3 stablelm starcoder2
"""
_MODEL_TYPES = frozenset(_KNOWN_TYPES.split())
"""Whose layers are all of the known kinds, as far as the fields below do not say otherwise."""

_LAYER_TYPES = {
    "attention": "full",
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
}

_OTHER_LAYERS = {
    "hybrid_override_pattern": "layers of several kinds (Mamba, attention, experts)",
    "layers_block_type": "layers of several kinds (Mamba, attention)",
    "attn_type_list": "layers of several kinds (linear and full attention)",
    "attn_layer_period": "layers of several kinds (Mamba, attention)",
    "attn_layer_indices": "layers of several kinds (Mamba, attention)",
    "full_attention_interval": "linear attention in most layers",
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "ssm_state_size": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "index_topk": "sparse attention by an index",
    "sparse_attention_config": "sparse attention",
    "compress_ratios": "attention over compressed keys and values",
    "block_configs": "layers of different shapes",
    "cross_attention_layers": "cross attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "global_head_dim": "heads of another size in some layers",
    "num_global_key_value_heads": "other KV heads in some layers",
}
"""Fields that tell of layers which are not modelled, and what those are."""

_TOLD_BY_LAYER_TYPES = {"full_attention_interval", "linear_num_key_heads", "ssm_state_size", "mamba_d_state"}
"""Of these, fields that mean nothing where `layer_types` names no such layer."""


def config_path(name: Path | str) -> Path:
    """The config file that `name` stands for: itself, or the `config.json` in the folder of that name."""
    place = Path(name).expanduser()
    return place if place.suffix == ".json" else place / "config.json"


def quantization_path(config: Path) -> Path:
    """Where ModelOptimizer notes the quantisation of a checkpoint, beside its config."""
    return config.with_name("hf_quant_config.json")


def model_from_hf_config(path: Path | str) -> Model:
    """Read `config.json` (or the folder that holds it) of a decoder-only model.

    Understands dense, grouped-query, mixture-of-experts, multi-head latent and sliding-window attention
    models, and the language part of vision models. Raises SpecError with all faults of the file, layers that
    are not modelled among them.
    """
    place = config_path(path)
    outer = _read_json(place)
    inner = next(
        (part for name in ("text_config", "llm_config") if isinstance(part := outer.get(name), dict)), {}
    )
    config = {**outer, **inner}
    for field in _BY_LAYER:
        if isinstance(each := config.get(field), list) and each and each.count(each[0]) == len(each):
            config[field] = each[0]
    if not (config.get("quantization_config") or config.get("compression_config")):
        beside = quantization_path(place)
        if beside.is_file():
            table = _read_json(beside).get("quantization")
            if isinstance(table, dict):
                config["quantization_config"] = {"quant_method": "modelopt", **table}
    name = str(outer.get("_name_or_path") or place.resolve().parent.name)
    return _build(Fields(config, str(place)), name)


def _read_json(place: Path) -> dict[str, object]:
    try:
        loaded = json.loads(place.read_text(encoding="utf-8"))
    except OSError as fault:
        raise SpecError(str(place), [f"cannot be read: {fault.strerror or fault}"]) from fault
    except json.JSONDecodeError as fault:
        raise SpecError(str(place), [f"line {fault.lineno}: not JSON: {fault.msg}"]) from fault
    except (UnicodeDecodeError, RecursionError) as fault:
        raise SpecError(str(place), [f"not JSON: {fault}"]) from fault
    if not isinstance(loaded, dict):
        raise SpecError(str(place), ["expected a JSON object"])
    return cast("dict[str, object]", loaded)


def _build(read: Fields, name: str) -> Model:
    config = read.values
    kind = read.text("model_type")
    read.faults += _unknown_layers(config, kind)
    layers = read.whole("num_hidden_layers", "n_layer", "num_layers", least=1)
    hidden = read.whole("hidden_size", "n_embd", least=1)
    heads = read.whole("num_attention_heads", "n_head", least=1)
    kv_heads = read.whole("num_key_value_heads", "num_kv_heads", default=heads, least=1)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    expert = read.whole("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden, least=1)
    # Llama 4 names its experts' size intermediate_size; Granite's blocks without experts are the shared ones.
    intermediate = read.whole("intermediate_size_mlp", default=expert, least=1)
    if not config.get("num_local_experts"):
        intermediate = read.whole("shared_intermediate_size", default=intermediate, least=1)
    mla = _mla(read)
    head_dim = read.whole("head_dim", default=max(hidden // heads, 1), least=1)
    if mla is None and "head_dim" not in config and hidden % heads:
        read.faults.append(f"num_attention_heads {heads} does not divide hidden_size {hidden}")
    if heads % kv_heads:
        read.faults.append(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in _DTYPES:
        read.faults.append(f"torch_dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    spec = Model(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=mla.v_head_dim if mla else head_dim,
        intermediate=intermediate,
        vocab=read.whole("vocab_size", least=1),
        tied_embeddings=read.flag("tie_word_embeddings", default=kind in _TIED),
        gated_ffn=kind not in _UNGATED,
        qk_norm=kind.startswith(("qwen3", "gemma3")) or bool(config.get("use_qk_norm")),
        qkv_bias=bool(config.get("attention_bias")) or kind.startswith("qwen2"),
        dtype=_DTYPES.get(dtype, "bf16"),
        quantization=_quantization(read),
        moe=_moe(read, kind, layers, expert),
        mla=mla,
        sliding_window=_sliding_window(read, kind, layers),
        max_model_len=read.whole(
            "max_position_embeddings", "n_positions", "seq_length", default=2048, least=1
        ),
        source=f"Hugging Face config of {name}",
    )
    read.check()
    return spec


def _unknown_layers(config: Mapping[str, object], kind: str) -> list[str]:
    """What the config says of layers that are not modelled."""
    types = config.get("layer_types")
    named = list(dict.fromkeys(map(str, types))) if isinstance(types, list) else []
    found = [f"not modelled: {each} layers (layer_types)" for each in named if each not in _LAYER_TYPES]
    same_as = {"global_head_dim": "head_dim", "num_global_key_value_heads": "num_key_value_heads"}
    for name, what in _OTHER_LAYERS.items():
        told_already = bool(named) and name in _TOLD_BY_LAYER_TYPES
        usual = name in same_as and config.get(name) == config.get(same_as[name])
        if config.get(name) and not told_already and not usual and not _full_attention(config, name):
            found.append(f"not modelled: {what} ({name})")
    if not kind:
        found.append("model_type is missing")
    elif kind not in _MODEL_TYPES and not found:
        found.append(f"model_type {kind!r} is not known: its layers may be of kinds that are not modelled")
    return found


def _full_attention(config: Mapping[str, object], name: str) -> bool:
    """Whether MiniMax's list of attention kinds names full attention (1) alone."""
    kinds = config.get(name) if name == "attn_type_list" else None
    return isinstance(kinds, list) and all(each == 1 for each in kinds)


def _mla(read: Fields) -> Mla | None:
    if not read.values.get("kv_lora_rank"):
        return None
    return Mla(
        q_lora_rank=read.whole("q_lora_rank", default=0),
        kv_lora_rank=read.whole("kv_lora_rank", least=1),
        qk_nope_head_dim=read.whole("qk_nope_head_dim", least=1),
        qk_rope_head_dim=read.whole("qk_rope_head_dim", least=1),
        v_head_dim=read.whole("v_head_dim", least=1),
    )


_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_BY_LAYER = ("moe_topk", "moe_intermediate_size", "num_shared_expert", "num_experts")
"""What Hunyuan's configs give for each layer, as a list: the same number in all of them."""


def _moe(read: Fields, kind: str, layers: int, expert: int) -> Moe | None:
    config = read.values
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if not any(config.get(name) for name in names):
        return None
    experts = read.whole(*(name for name in names if config.get(name)), least=1)
    if experts == 1:
        return None
    top_k = read.whole(
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k", least=1
    )
    if top_k > experts:
        read.faults.append(f"num_experts_per_tok {top_k} exceeds {experts} experts")
    size = read.whole("moe_intermediate_size", default=expert, least=1)
    shared = read.whole(*_SHARED, default=1 if kind.startswith("llama4") else 0)
    shared_size = read.whole("shared_expert_intermediate_size", "shared_intermediate_size", default=0)
    if shared_size:
        shared = max(round(shared_size / size), 1)
    return Moe(_moe_layers(read, layers), experts, top_k, size, shared)


def _moe_layers(read: Fields, layers: int) -> int:
    config = read.values
    only_dense, frequency = config.get("mlp_only_layers") or [], config.get("moe_layer_freq")
    if not isinstance(only_dense, list):
        read.faults.append(f"mlp_only_layers must be a list, not {only_dense!r}")
        return layers
    if isinstance(frequency, list):
        return sum(1 for layer in frequency if layer)
    step = read.whole(
        "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", "moe_layer_interval", default=1
    )
    dense = read.whole("first_k_dense_replace", "moe_layer_start_index", default=0)
    return max((layers - dense - len(only_dense)) // max(step, 1), 1)


def _sliding_window(read: Fields, kind: str, layers: int) -> SlidingWindow | None:
    config = read.values
    chunk = config.get("attention_chunk_size")
    if isinstance(chunk, int) and chunk:
        full = config.get("no_rope_layers")
        windowed = sum(1 for x in full if x) if isinstance(full, list) and full else layers - layers // 4
        return SlidingWindow(chunk, windowed, chunked=True)
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) != layers:
        read.faults.append(f"layer_types names {len(types)} layers, num_hidden_layers is {layers}")
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return None
    tokens = read.whole("sliding_window", least=1)
    if isinstance(types, list):
        windowed = sum(1 for layer in types if _LAYER_TYPES.get(str(layer)) == "sliding")
        return SlidingWindow(tokens, windowed) if windowed else None
    pattern = config.get("sliding_window_pattern") or _DEFAULT_PATTERN.get(kind)
    if isinstance(pattern, str) and pattern:  # EXAONE's "LLLG": local and global layers in turn
        return SlidingWindow(tokens, sum(pattern[layer % len(pattern)] == "L" for layer in range(layers)))
    if isinstance(pattern, int) and pattern > 1:
        return SlidingWindow(tokens, layers - layers // pattern)
    return SlidingWindow(tokens, layers)


def _quantization(read: Fields) -> str:
    """Weight dtype name of the checkpoint's own quantisation, "" without one."""
    table = read.values.get("quantization_config") or read.values.get("compression_config")
    if not isinstance(table, dict):
        return ""
    method = str(table.get("quant_method") or ("modelopt" if "quant_algo" in table else "")).lower()
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin"):
        bits = table.get("bits", table.get("w_bit", 4))
        return "int4" if bits == 4 else "w8a16"
    if method == "modelopt":
        return _modelopt(read, str(table.get("quant_algo") or "").upper())
    if method == "compressed-tensors":
        return _compressed_tensors(read, table)
    names = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "bitsandbytes": "int4"}
    if method not in names:
        read.faults.append(f"quantization_config: quant_method {method!r} is not known")
    return names.get(method, "")


def _modelopt(read: Fields, algorithm: str) -> str:
    names = {"": "", "FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "INT4_AWQ": "int4"}
    if algorithm not in names:
        read.faults.append(f"quantization_config: quant_algo {algorithm!r} is not known")
    return names.get(algorithm, "")


def _compressed_tensors(read: Fields, table: dict[str, object]) -> str:
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
