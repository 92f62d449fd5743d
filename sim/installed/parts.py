"""vLLM's own objects, made without model, tokenizer or GPU: its scheduler, requests and outputs.

Importing this module imports vLLM, for which `cpu.prepare` must have been called. Only public classes are
used, and what a release does not have is found out from their signatures. Everything that a real engine would
take from a model or a device stands in as the smallest thing that the scheduler accepts.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from math import lcm
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_interface import KVCacheConfig as VllmKVCacheConfig
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from scheduler import EOS_TOKEN_ID, GroupKind, KVCacheConfig, KVGroupSpec, SchedulerConfig
from scheduler import Request as OurRequest
from sim.installed.present import RUNNER

_DRAFT_TOKEN = 7
_SWITCHES = {
    "reserve_full_prompt": ("scheduler_reserve_full_isl", False),
    "watermark": ("watermark", 0.0),
    "max_num_scheduled_tokens": ("max_num_scheduled_tokens", None),
    "max_active": ("max_num_active_seqs", None),
    "long_prefill_adaptive": ("long_prefill_token_threshold_adaptive", False),
    "prefill_interval": ("prefill_schedule_interval", 1),
}
"""Settings that not every release has: their names in vLLM, and the values at which they do nothing."""


KNOWS_RETENTION = "prefix_cache_retention_interval" in inspect.signature(VllmKVCacheConfig).parameters
"""Whether a scheduler of this release can be told which blocks of windows to keep."""


class UnknownSettingError(ValueError):
    """The installed release does not know a setting: `setting` is the scenario's name for it."""

    def __init__(self, setting: str) -> None:
        super().__init__("the installed vLLM does not know this setting")
        self.setting = setting


def check_class(cls: type, *, async_scheduling: bool) -> None:
    """Raise ValueError for a scheduler class that does not fit how the engine schedules."""
    is_ahead = issubclass(cls, AsyncScheduler)
    if is_ahead != async_scheduling:
        base = "AsyncScheduler" if async_scheduling else "Scheduler"
        raise ValueError(
            f"{cls.__module__}.{cls.__qualname__} is {'an' if is_ahead else 'no'} AsyncScheduler, and "
            f"async_scheduling is {str(async_scheduling).lower()}: derive it from {base}, or set "
            f"engine.async_scheduling: {str(is_ahead).lower()}"
        )


def make_scheduler(
    config: SchedulerConfig,
    kv_cache: KVCacheConfig,
    *,
    cls: type | None,
    has_connector: bool,
) -> Any:
    """The scheduler of the installed release, with its KV-cache manager.

    `cls`: a class of the user's own (None: the one that the release takes). Raises `UnknownSettingError`, and
    ValueError in vLLM's words for what vLLM refuses.
    """
    init_none_hash(sha256)
    vllm_config = _vllm_config(config, kv_cache, has_connector)
    vllm_config.scheduler_config.scheduler_cls = cls
    groups = [
        KVCacheGroupSpec([f"layer{index}"], _group(group)) for index, group in enumerate(kv_cache.groups)
    ]
    _register_specs(vllm_config)
    retention = kv_cache.window_retention_tokens
    given = {} if retention == "release" else {"prefix_cache_retention_interval": retention}
    pages = VllmKVCacheConfig(
        num_blocks=kv_cache.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **_taken(VllmKVCacheConfig, given),
    )
    made = vllm_config.scheduler_config.get_scheduler_cls() if cls is None else cls
    with _usual_runner():
        return made(
            vllm_config=vllm_config,
            kv_cache_config=pages,
            structured_output_manager=_Grammars(),
            block_size=lcm(*(group.block_size for group in kv_cache.groups)),
            log_stats=True,
            **_taken(made, {"hash_block_size": kv_cache.hash_block_size}),
        )


@contextmanager
def _usual_runner() -> Iterator[None]:
    """The model runner that a GPU would have, where neither the user has chosen nor the release goes by the
    model: the later one.
    """
    goes_by_model = hasattr(VllmConfig, "_is_default_v2_model_runner_model")
    chosen = RUNNER in os.environ or goes_by_model or not hasattr(VllmConfig, "use_v2_model_runner")
    if not chosen:
        os.environ[RUNNER] = "1"
    try:
        yield
    finally:
        if not chosen:
            del os.environ[RUNNER]


def _vllm_config(config: SchedulerConfig, kv_cache: KVCacheConfig, has_connector: bool) -> Any:
    settings = VllmSchedulerConfig(
        max_model_len=config.max_model_len,
        is_encoder_decoder=False,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
        policy=config.policy,
        async_scheduling=False,
        disable_hybrid_kv_cache_manager=has_connector,
        **_switches(config),
    )
    cache_config = CacheConfig(
        block_size=16, enable_prefix_caching=kv_cache.enable_caching, **_taken(CacheConfig, {"swap_space": 0})
    )
    model_config = copy.copy(_model_config())
    model_config.max_model_len = config.max_model_len
    made = VllmConfig(model_config=model_config, scheduler_config=settings, cache_config=cache_config)
    # What the platform has edited is put back.
    made.scheduler_config.async_scheduling = config.async_scheduling
    made.scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
    made.cache_config.block_size = kv_cache.hash_block_size
    made.cache_config.enable_prefix_caching = kv_cache.enable_caching
    made.cache_config.num_gpu_blocks = kv_cache.num_blocks
    made.parallel_config.pipeline_parallel_size = config.pipeline_parallel_size
    if config.max_loras is not None:
        made.lora_config = LoRAConfig(max_loras=config.max_loras)
    if config.speculative is not None:
        made.speculative_config = _speculative(config)
    if has_connector:
        made.kv_transfer_config = KVTransferConfig(
            kv_connector="TimedKVConnector",
            kv_connector_module_path=f"{__name__.rpartition('.')[0]}.connector",
            kv_role="kv_both",
        )
    return made


def _switches(config: SchedulerConfig) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, (theirs, off) in _SWITCHES.items():
        value = getattr(config, name)
        if theirs in {each.name for each in fields(VllmSchedulerConfig)}:
            found[theirs] = off if value is None else value
        elif value is not None and value != off:
            raise UnknownSettingError(name)
    return found


def _taken(made: Callable[..., object], given: Mapping[str, object]) -> dict[str, Any]:
    """Those of the arguments that a class of this release takes, by its own signature or a base's."""
    for cls in made.__mro__ if isinstance(made, type) else ():
        parameters = inspect.signature(cls).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            return {name: value for name, value in given.items() if name in parameters}
    return {}


@cache
def _model_config() -> Any:
    """A tiny model's settings from a folder of their own: the scheduler asks how long a text may be."""
    folder = tempfile.TemporaryDirectory(prefix="dryserve_model_")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 32_000,
        "max_position_embeddings": 1 << 23,
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
    }
    (Path(folder.name) / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    made = ModelConfig(
        model=folder.name, dtype="float16", seed=0, skip_tokenizer_init=True, max_model_len=4096
    )
    _KEPT.append(folder)
    return made


_KEPT: list[object] = []
"""The model's folder, until the process ends."""


def _speculative(config: SchedulerConfig) -> Any:
    """vLLM's own settings of speculation without the checks that would load a drafter's model."""
    ours = config.speculative
    assert ours is not None
    made: Any = object.__new__(SpeculativeConfig)
    for each in fields(SpeculativeConfig):
        value = None
        if each.default is not MISSING:
            value = getattr(each.default, "default", each.default)
        elif each.default_factory is not MISSING:
            value = each.default_factory()
        object.__setattr__(made, each.name, value)
    made.method = ours.kind
    made.num_speculative_tokens = ours.num_speculative_tokens
    if ours.drafts_by_batch:
        made.num_speculative_tokens_per_batch_size = list(ours.drafts_by_batch)
    return made


def _group(group: KVGroupSpec) -> Any:
    base = {"block_size": group.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if group.kind is GroupKind.SLIDING:
        return SlidingWindowSpec(**base, sliding_window=group.window)
    if group.kind is GroupKind.CHUNKED_LOCAL:
        return ChunkedLocalAttentionSpec(**base, attention_chunk_size=group.chunk)
    assert group.kind is GroupKind.FULL, "scenarios know no other"
    return FullAttentionSpec(**base)


def _register_specs(vllm_config: Any) -> None:
    """Later releases want to know the kinds of KV groups before a manager is made."""
    from vllm.v1.core import single_type_kv_cache_manager as managers

    register = getattr(managers, "register_all_kvcache_specs", None)
    if register is not None:
        register(vllm_config)


# --- requests and outputs ---------------------------------------------------------------------------------


class _Grammar:
    """A compiled grammar that has nothing against any token."""

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens)


class _Grammars:
    """Stands in for the manager of structured outputs; releases tell it more or less."""

    def should_advance(self, request: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(request.use_structured_output)

    def accept_tokens(self, request: Any, tokens: Sequence[int], *args: Any, **kwargs: Any) -> bool:
        return True

    def validate_tokens(self, request: Any, tokens: Sequence[int], *args: Any) -> Sequence[int]:
        return tokens


class RequestMaker:
    """Makes vLLM's requests from ours for one scheduler."""

    def __init__(self, scheduler: Any, kv_cache: KVCacheConfig, has_connector: bool) -> None:
        self._hasher = None
        if kv_cache.enable_caching or has_connector:
            given = (kv_cache.hash_block_size, sha256)
            ahead = getattr(scheduler, "num_hash_lookahead_tokens", None)
            self._hasher = get_request_block_hasher(*given, *(() if ahead is None else (ahead,)))
        self._adapters: dict[str, Any] = {}

    def make(self, request: OurRequest) -> Any:
        """The request as it comes from the front end."""
        sampling = SamplingParams(
            max_tokens=request.max_tokens, min_tokens=request.min_tokens, ignore_eos=request.ignore_eos
        )
        sampling.update_from_generation_config({}, EOS_TOKEN_ID)
        if request.needs_grammar:
            sampling.structured_outputs = StructuredOutputsParams(regex="a+")
        prompt: list[int] = []
        for first, count in request.tokens.pieces(0, request.num_prompt_tokens):
            prompt.extend(range(first, first + count))
        return Request(
            request_id=vllm_id(request.request_id),
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            client_index=request.client_index,
            arrival_time=request.arrival_time,
            priority=request.priority,
            lora_request=None if request.lora_name is None else self._adapter(request.lora_name),
            cache_salt=request.cache_salt,
            block_hasher=self._hasher,
            **_taken(Request, {"eos_token_id": EOS_TOKEN_ID}),
        )

    def _adapter(self, name: str) -> Any:
        if name not in self._adapters:
            self._adapters[name] = LoRARequest(name, len(self._adapters) + 1, "/adapter")
        return self._adapters[name]


def vllm_id(request_id: int) -> str:
    """vLLM's id of a request; where priority and arrival are equal it compares them as texts."""
    return str(request_id)


def compiled_grammar() -> Any:
    """What a request waits for that needs a grammar."""
    return _Grammar()


def runner_output(
    ids: list[str], tokens: Sequence[list[int]], received: Sequence[str], sent: Sequence[str], bad: set[int]
) -> Any:
    """What the model runner answers to a step."""
    told = received or sent or bad
    transfers = (
        KVConnectorOutput(finished_recving=received, finished_sending=sent, invalid_block_ids=bad)
        if told
        else None
    )
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=list(tokens),
        kv_connector_output=transfers,
    )


def drafts(ids: list[str], counts: Sequence[int]) -> Any:
    """The drafts proposed after a step."""
    return DraftTokenIds(ids, [[_DRAFT_TOKEN] * count for count in counts])


def pause_state(level: int) -> Any:
    """vLLM's name of a level of pause."""
    from vllm.v1.core.sched.interface import PauseState

    return PauseState(level)


ABORTED = RequestStatus.FINISHED_ABORTED
PREEMPTED = RequestStatus.PREEMPTED
