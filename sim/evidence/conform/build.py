"""Turns a case's configuration and requests into the engine's own objects."""

from __future__ import annotations

from typing import Literal, cast

from scheduler import (
    EngineCore,
    GroupKind,
    KVCacheConfig,
    KVGroupSpec,
    Request,
    SchedulerConfig,
    SessionInput,
    SpeculativeConfig,
)
from scheduler.release import release
from sim.evidence.conform.case import Case, ConfigScript, GroupScript, SpecScript
from sim.evidence.conform.model import PretendedModel
from sim.evidence.conform.transfers import ScriptedConnector


def build_engine(
    case: Case, model: PretendedModel, connector: ScriptedConnector | None, *, plain: bool = False
) -> EngineCore:
    """The engine that a case was recorded with; `plain`: without a cohort.

    Its release is that of the recording, with every switch as the case says: an absent one is off.
    """
    return EngineCore(
        scheduler_config(case.config),
        kv_cache_config(case.config),
        connector=connector,
        draft_validator=model,
        release=release(case.release),
        forecast=None if plain else model.steady_tokens,
        names_everybody=True,
    )


def scheduler_config(script: ConfigScript) -> SchedulerConfig:
    """Limits and policies, with the format's defaults."""
    spec = script.get("spec")
    return SchedulerConfig(
        max_num_seqs=script.get("max_num_seqs", 16),
        max_num_batched_tokens=script.get("max_num_batched_tokens", 512),
        max_model_len=script.get("max_model_len", 4096),
        long_prefill_token_threshold=script.get("long_prefill_token_threshold", 0),
        enable_chunked_prefill=script.get("chunked_prefill", True),
        policy=cast("Literal['fcfs', 'priority']", script.get("policy", "fcfs")),
        async_scheduling=script.get("async_sched", False),
        speculative=speculative_config(spec) if spec else None,
        max_loras=script.get("max_loras"),
        kv_load_failure_policy=cast(
            "Literal['recompute', 'fail']", script.get("kv_load_failure_policy", "recompute")
        ),
        include_finished_set=script.get("include_finished_set", False),
        reserve_full_prompt=script.get("reserve_full_prompt", False),
        watermark=script.get("watermark", 0.0),
        max_num_scheduled_tokens=script.get("max_num_scheduled_tokens"),
        max_active=script.get("max_active"),
        long_prefill_adaptive=script.get("long_prefill_adaptive", False),
        prefill_interval=script.get("prefill_interval", 1),
    )


def speculative_config(script: SpecScript) -> SpeculativeConfig:
    """The drafter of a case."""
    return SpeculativeConfig(
        cast("Literal['ngram']", script["kind"]),
        script["k"],
        lookahead_hashes=script.get("lookahead_hashes", False),
        parallel=script.get("parallel", False),
        drafts_by_batch=tuple((first, last, k) for first, last, k in script.get("by_batch") or ()),
    )


def kv_cache_config(script: ConfigScript) -> KVCacheConfig:
    """Blocks and groups, with the format's defaults."""
    block_size = script.get("hash_block_size", 16)
    groups = script.get("groups") or [GroupScript(type="full")]
    return KVCacheConfig(
        num_blocks=script.get("num_blocks", 1000),
        block_size=block_size,
        hash_block_size=block_size,
        enable_caching=script.get("prefix_caching", True),
        window_retention_tokens=script.get("retention"),
        groups=tuple(
            KVGroupSpec(
                kind=GroupKind(group["type"]),
                block_size=group.get("block_size", block_size),
                window=group.get("window", 0),
                chunk=group.get("chunk", 0),
                mamba_mode=cast("Literal['none', 'align', 'all']", group.get("mode", "none")),
                num_speculative_blocks=group.get("spec_blocks", 0),
            )
            for group in groups
        ),
    )


def build_request(case: Case, request_id: int) -> Request:
    """Request number `request_id` of a case."""
    script = case.requests[request_id]
    lora = script.get("lora", 0)
    salt = script.get("salt")
    return Request(
        request_id,
        [(start, length) for start, length in script["prompt"]],
        script["max_tokens"],
        arrival_time=script.get("at", request_id),
        priority=script.get("prio", 0),
        client_index=script.get("client", 0),
        min_tokens=script.get("min_tokens", 0),
        ignore_eos=script.get("ignore_eos", False),
        stop_token_ids=script.get("stop_ids", ()),
        lora_name=f"lora{lora}" if lora else None,
        cache_salt=None if salt is None else str(salt),
        skip_reading_prefix_cache=script.get("skip_cache", False),
        needs_grammar=script.get("fsm", False),
        resumable=script.get("resumable", False),
    )


def build_input(prompt: list[tuple[int, int]], max_tokens: int, arrival_time: float) -> SessionInput:
    """The next input of a streaming session; its sampling parameters are those of the session."""
    return SessionInput(tuple((start, length) for start, length in prompt), max_tokens, arrival_time)
