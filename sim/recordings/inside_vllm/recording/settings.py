"""The header of a recording: what the engine was told, in the words of the format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = "dryserve-recording/1"

_GROUPS = {
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "mamba",
    "FullAttentionSpec": "full",
}


def vllm_version() -> str:
    """The installed release, without what builds put behind it."""
    import vllm

    return str(getattr(vllm, "__version__", "unknown")).partition("+")[0]


def describe(scheduler: Any, arguments: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The header. `arguments`: those that the scheduler was made with, by name."""
    vllm_config, kv_cache = arguments["vllm_config"], arguments["kv_cache_config"]
    behind = next(kind for kind in type(scheduler).__mro__ if not kind.__module__.startswith(__package__))
    if behind is type(scheduler):  # a class that somebody made of `Recorded` and a scheduler of his own
        behind = next(kind for kind in behind.__mro__[1:] if not kind.__module__.startswith(__package__))
    cannot: list[str] = []
    settings = {
        "config": _config(scheduler, vllm_config, kv_cache, arguments, cannot),
        **_machine(vllm_config),
        "hash_lookahead_tokens": getattr(scheduler, "num_hash_lookahead_tokens", 0),
        "not_replayed": cannot,
    }
    return {
        "format": FORMAT,
        "release": version,
        "scheduler": behind.__name__,
        "patched": not behind.__module__.startswith("vllm."),
        "settings": settings,
    }


def _config(
    scheduler: Any, vllm_config: Any, kv_cache: Any, arguments: Mapping[str, Any], cannot: list[str]
) -> dict[str, Any]:
    limits, cache = vllm_config.scheduler_config, vllm_config.cache_config
    config = {
        "policy": str(getattr(limits.policy, "value", limits.policy)),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": vllm_config.model_config.max_model_len,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "chunked_prefill": bool(limits.enable_chunked_prefill),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "num_blocks": kv_cache.num_blocks,
        "hash_block_size": arguments.get("hash_block_size") or arguments["block_size"],
        "groups": [_group(group.kv_cache_spec, cache, cannot) for group in kv_cache.kv_cache_groups],
        "async_sched": any(kind.__name__ == "AsyncScheduler" for kind in type(scheduler).__mro__),
        "include_finished_set": bool(arguments.get("include_finished_set", False)),
        "reserve_full_prompt": bool(getattr(limits, "scheduler_reserve_full_isl", False)),
        "watermark": getattr(limits, "watermark", 0.0) or 0.0,
        "max_num_scheduled_tokens": getattr(limits, "max_num_scheduled_tokens", None),
        "max_active": getattr(limits, "max_num_active_seqs", None),
        "long_prefill_adaptive": bool(getattr(limits, "long_prefill_token_threshold_adaptive", False)),
        "prefill_interval": getattr(limits, "prefill_schedule_interval", 1) or 1,
        "retention": getattr(kv_cache, "prefix_cache_retention_interval", None),
    }
    if vllm_config.lora_config is not None:
        config["max_loras"] = vllm_config.lora_config.max_loras
    if vllm_config.speculative_config is not None:
        config["spec"] = _speculation(vllm_config.speculative_config)
    if getattr(scheduler, "connector", None) is not None:
        config["connector"] = True
        config["kv_load_failure_policy"] = vllm_config.kv_transfer_config.kv_load_failure_policy
    parallel = vllm_config.parallel_config
    stages = parallel.pipeline_parallel_size
    if stages > 1:
        config["pp"] = stages
    context_parallel = ("decode_context_parallel_size", "prefill_context_parallel_size")
    cannot += [name for name in context_parallel if getattr(parallel, name, 1) > 1]
    if getattr(limits, "is_encoder_decoder", False) or vllm_config.model_config.is_encoder_decoder:
        cannot.append("encoder-decoder model")
    return config


def _group(spec: Any, cache: Any, cannot: list[str]) -> dict[str, Any]:
    """A KV cache group, by the nearest class that the format knows."""
    inner = getattr(spec, "kv_cache_specs", None)
    if inner:  # layers of one kind, but of different sizes
        spec = next(iter(inner.values()))
    names = [kind.__name__ for kind in type(spec).__mro__]
    kind = next((_GROUPS[name] for name in names if name in _GROUPS), None)
    if kind is None:
        cannot.append(f"KV cache groups of {names[0]}")
        return {"type": names[0], "block_size": spec.block_size}
    group: dict[str, Any] = {"type": kind, "block_size": spec.block_size}
    if kind == "sliding":
        group["window"] = spec.sliding_window
    elif kind == "chunked":
        group["chunk"] = spec.attention_chunk_size
    elif kind == "mamba":
        mode = getattr(spec, "mamba_cache_mode", None) or getattr(cache, "mamba_cache_mode", "none")
        group |= {"mode": mode, "spec_blocks": getattr(spec, "num_speculative_blocks", 0)}
    return group


def _speculation(spec: Any) -> dict[str, Any]:
    """The drafter, by what it asks of the scheduler."""
    if _says(spec, "use_multi_module_mtp"):
        kind = "mtp_multi"
    elif _says(spec, "use_dflash"):
        kind = "dflash"
    elif _says(spec, "use_eagle"):
        kind = "eagle"
    elif _says(spec, "uses_draft_model"):
        kind = "draft_model"
    else:
        kind = "ngram"
    by_batch = getattr(spec, "num_speculative_tokens_per_batch_size", None)
    return {
        "kind": kind,
        "k": spec.num_speculative_tokens,
        "lookahead_hashes": not getattr(spec, "disable_lookahead_block_hashes", True),
        "parallel": bool(getattr(spec, "parallel_drafting", False)),
        "by_batch": [list(each) for each in by_batch] if by_batch else None,
    }


def _says(spec: Any, question: str) -> bool:
    ask = getattr(spec, question, None)
    return bool(ask()) if ask is not None else False


def _machine(vllm_config: Any) -> dict[str, Any]:
    """Model and hardware, as far as they are known."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return {
        "model": model.model,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": None if model.quantization is None else str(model.quantization),
        "kv_cache_dtype": str(vllm_config.cache_config.cache_dtype),
        "enforce_eager": bool(model.enforce_eager),
        "gpu": _gpu_name(),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "data_parallel": parallel.data_parallel_size,
    }


def _gpu_name() -> str | None:
    try:
        from vllm.platforms import current_platform

        return str(current_platform.get_device_name())
    except Exception:
        return None
