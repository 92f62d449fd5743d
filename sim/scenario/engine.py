"""The `engine` section: one vLLM replica, under vLLM's own parameter names."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.grammar import GrammarSection
from sim.scenario.lora import LoraSection
from sim.scenario.policies import PreemptionModeSection, VictimPolicySection, WaitingOrderSection
from sim.scenario.rules import EngineVersion, RuleSettings
from sim.scenario.section import Section
from sim.scenario.speculative import SpeculativeSection
from sim.scenario.switches import PauseEvent, since

DEFAULT_NOTE = "; null = vLLM's default for this version and GPU"


class EngineSection(Section):
    """Settings of every replica. Null means what that release of vLLM would choose on that GPU."""

    version: Annotated[
        EngineVersion, Field(description="vLLM release whose decisions and defaults are mirrored")
    ] = "0.16.0"
    rules: Annotated[
        RuleSettings,
        Field(
            description="rules of the scheduler set otherwise than in that release, such as "
            "{holders_first: false}; the table of rules has them all"
        ),
    ] = Field(default_factory=dict)
    entry_point: Annotated[
        Literal["server", "llm"],
        Field(description="what starts the engine, the API server or the offline LLM class: defaults differ"),
    ] = "server"
    tensor_parallel_size: Annotated[
        int, Field(ge=1, le=1024, description="GPUs that share each layer of a replica")
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Field(ge=1, le=1024, description="pipeline stages of a replica")
    ] = 1
    max_num_seqs: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="most requests running at once" + DEFAULT_NOTE)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Field(ge=1, le=1 << 24, description="token budget of a step" + DEFAULT_NOTE)
    ] = None
    max_model_len: Annotated[
        int | None,
        Field(
            ge=1, le=1 << 23, description="most prompt + output tokens of a request; null = the model's own"
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, Field(gt=0, le=1, description="share of GPU memory the engine may fill" + DEFAULT_NOTE)
    ] = None
    block_size: Annotated[int, Field(ge=1, le=1024, description="tokens of a KV block")] = 16
    num_gpu_blocks_override: Annotated[
        int | None,
        Field(ge=2, le=1 << 31, description="KV blocks of a replica, in place of what the memory plan finds"),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"],
        Field(description="type of KV entries; auto = the model's activations"),
    ] = "auto"
    enable_prefix_caching: Annotated[bool, Field(description="reuse KV blocks of equal prefixes")] = True
    enable_chunked_prefill: Annotated[
        bool, Field(description="let a prompt be computed over several steps")
    ] = True
    long_prefill_token_threshold: Annotated[
        int, Field(ge=0, le=1 << 24, description="most tokens of one prompt in a step; 0 = no cap")
    ] = 0
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], Field(description="order of the waiting queue and choice of victim")
    ] = "fcfs"
    victim_policy: Annotated[
        VictimPolicySection | None,
        Field(description="who is preempted when KV blocks run out; null = as scheduling_policy implies"),
    ] = None
    waiting_order: Annotated[
        WaitingOrderSection | None,
        Field(description="who is admitted first; null = as scheduling_policy implies"),
    ] = None
    watermark: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of the KV blocks that an admission beside running requests leaves free"
            + since("watermark"),
        ),
    ] = 0.0
    reserve_full_prompt: Annotated[
        bool | None,
        Field(
            description="admit a request only if its whole prompt has room, not just its first chunk"
            + since("reserve_full_prompt")
            + DEFAULT_NOTE
        ),
    ] = None
    preemption_mode: Annotated[
        PreemptionModeSection | None,
        Field(description="what becomes of a preempted request's KV; null = recompute"),
    ] = None
    async_scheduling: Annotated[
        bool | None, Field(description="schedule a step while the one before runs" + DEFAULT_NOTE)
    ] = None
    enforce_eager: Annotated[bool, Field(description="run without CUDA graphs")] = False
    max_num_scheduled_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=1 << 24,
            description="tokens scheduled in a step, if fewer than the batch size max_num_batched_tokens"
            + since("max_num_scheduled_tokens"),
        ),
    ] = None
    max_active: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="most requests running at once, if fewer than max_num_seqs" + since("max_active"),
        ),
    ] = None
    long_prefill_adaptive: Annotated[
        bool,
        Field(
            description="raise the threshold to max_num_batched_tokens / number of requests"
            + since("long_prefill_adaptive")
        ),
    ] = False
    prefill_interval: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="while something decodes, prefills take part in every so many steps only"
            + since("prefill_interval"),
        ),
    ] = 1
    window_retention_tokens: Annotated[
        int | None,
        Field(
            ge=0,
            le=1 << 24,
            description="which blocks of sliding windows stay in the prefix cache: 0 = where a replay of the "
            "prompt starts, n = every n tokens as well" + since("window_retention_tokens") + DEFAULT_NOTE,
        ),
    ] = None
    pause_events: Annotated[
        tuple[PauseEvent, ...],
        Field(description="when every engine is paused and goes on" + since("pause_events")),
    ] = ()
    speculative_config: Annotated[
        SpeculativeSection | None, Field(description="speculative decoding; null = off")
    ] = None
    lora: Annotated[LoraSection | None, Field(description="slots for LoRA adapters; null = off")] = None
    grammar: Annotated[
        GrammarSection | None, Field(description="compiling grammars for structured output; null = none come")
    ] = None
