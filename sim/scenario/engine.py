"""The `engine` section: one vLLM replica, under vLLM's own parameter names."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sim.scenario.distributions import RandomTime
from sim.scenario.policies import (
    ClassPath,
    PreemptionModeSection,
    VictimPolicySection,
    WaitingOrderSection,
)
from sim.scenario.rules import DRAFTS_BY_BATCH_SINCE, EngineVersion, RuleSettings, since
from sim.scenario.section import AlsoPlain, ModelName, Section

DEFAULT_NOTE = "; null = vLLM's default for this version and GPU"

PAUSE_LEVELS = {"unpaused": 0, "paused_new": 1, "paused_all": 2}
"""vLLM's number of each state of a pause."""


class PauseEvent(Section):
    """From a moment on every engine is paused, or goes on."""

    at_s: Annotated[float, Field(ge=0, le=1e9, description="simulated time")]
    state: Annotated[
        Literal["unpaused", "paused_new", "paused_all"],
        Field(
            description="unpaused: as usual; paused_new: nobody is admitted who holds no KV blocks; "
            "paused_all: nothing is scheduled"
        ),
    ]


def _number_is_list(value: object) -> object:
    """`0.7` is short for `[0.7]`, the same rate for every position."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not 0 <= value <= 1:
        raise ValueError(f"must be from 0 to 1 (got {value})")
    return (value,)


AcceptanceRates = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...],
    Field(min_length=1),
    BeforeValidator(_number_is_list),
    AlsoPlain({"type": "number", "minimum": 0, "maximum": 1}),
]


DraftsOfBatch = tuple[
    Annotated[int, Field(ge=1, le=1_000_000)],
    Annotated[int, Field(ge=1, le=1_000_000)],
    Annotated[int, Field(ge=0, le=64)],
]


class SpeculativeSection(Section):
    """Speculative decoding: drafts are verified k at a time, and each step yields one token more than it
    accepts.
    """

    method: Annotated[
        Literal["ngram", "draft_model", "eagle"],
        Field(
            description="who drafts: a search in the prompt, a small model, or a layer on top of the model"
        ),
    ]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64, description="drafts per request and step")]
    acceptance: Annotated[
        AcceptanceRates,
        Field(
            description="chance that a draft is right if all before it are: one for all positions, or a list "
            "with one for each"
        ),
    ]
    model: Annotated[ModelName | None, Field(description="the small model; for draft_model only")] = None
    draft_pass_s: Annotated[
        Annotated[float, Field(ge=0, le=10)] | None,
        Field(description="seconds for one drafted token; null = by the cost model, 0 for ngram"),
    ] = None
    drafts_by_batch: Annotated[
        tuple[DraftsOfBatch, ...],
        Field(
            description="[first, last, drafts]: after a step of first to last requests so many drafts, and "
            "not num_speculative_tokens; with asynchronous scheduling; since vLLM "
            + DRAFTS_BY_BATCH_SINCE.removesuffix(".0")
        ),
    ] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.method == "draft_model" and self.model is None:
            raise ValueError("method draft_model needs a model")
        if self.method != "draft_model" and self.model is not None:
            raise ValueError(f"method {self.method} takes no model")
        if len(self.acceptance) not in (1, self.num_speculative_tokens):
            raise ValueError(
                f"acceptance has {len(self.acceptance)} rates for num_speculative_tokens "
                f"{self.num_speculative_tokens}; give one for each, or one for all"
            )
        last_before = 0
        for first, last, drafts in self.drafts_by_batch:
            if not last_before < first <= last or drafts > self.num_speculative_tokens:
                raise ValueError(
                    f"drafts_by_batch [{first}, {last}, {drafts}] must begin above {last_before}, not end "
                    f"before it begins, and have at most {self.num_speculative_tokens} drafts"
                )
            last_before = last
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """The chance of each position to be accepted, given that those before it are."""
        return self.acceptance * (self.num_speculative_tokens if len(self.acceptance) == 1 else 1)


class LoraSection(Section):
    """LoRA is on: the model can serve that many adapters in one step, and keeps memory for them."""

    max_loras: Annotated[int, Field(ge=1, le=4096, description="most distinct adapters in a step")] = 1
    max_lora_rank: Annotated[
        Literal[1, 8, 16, 32, 64, 128, 256, 320, 512],
        Field(description="rank for which memory is kept; vLLM knows no others"),
    ] = 16


class GrammarSection(Section):
    """A request with a grammar waits until the grammar is compiled; other requests pass it."""

    compile_s: Annotated[RandomTime, Field(description="time to compile a grammar, drawn once for each")]
    workers: Annotated[int, Field(ge=1, le=1024, description="grammars that a replica compiles at once")] = 1
    cache: Annotated[bool, Field(description="a replica keeps the grammars it has compiled")] = True


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
    scheduler: Annotated[
        Literal["mirror", "vllm"],
        Field(
            description="who decides: dryserve's mirror of the release, or the scheduler and KV cache of the "
            "vLLM that is installed here, slowly"
        ),
    ] = "mirror"
    scheduler_cls: Annotated[
        ClassPath | None,
        Field(
            description="with scheduler vllm: dotted path of the scheduler class, such as "
            "my_patch.MyScheduler; null = vLLM's own"
        ),
    ] = None
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
    block_size: Annotated[
        int | None,
        Field(
            ge=1,
            le=1024,
            description="tokens of a KV block; null = as release, model and GPU have it",
        ),
    ] = None
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
            description="raise a threshold above 0 to max_num_batched_tokens / number of requests"
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

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
