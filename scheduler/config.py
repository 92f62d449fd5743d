"""What an engine is told before its first request: limits, policies, and the shape of its KV cache.

Names and meanings are vLLM's where vLLM has one. Frozen values, checked once when made: a setting that no
engine could run with raises `ValueError` with all numbers in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import lcm
from typing import Literal

from scheduler.release import Rules


class GroupKind(StrEnum):
    """How the layers of a KV cache group attend, which decides what blocks they keep."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED_LOCAL = "chunked"
    MAMBA = "mamba"


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """One group of layers that share block tables.

    `block_size` in tokens; `window` for sliding attention and `chunk` for chunked-local attention in tokens;
    `mamba_mode` none, align or all, `num_speculative_blocks` are a Mamba group's blocks for the states after
    draft tokens.
    """

    kind: GroupKind = GroupKind.FULL
    block_size: int = 16
    window: int = 0
    chunk: int = 0
    mamba_mode: Literal["none", "align", "all"] = "none"
    num_speculative_blocks: int = 0

    @property
    def is_aligned(self) -> bool:
        """Whether this is a Mamba group in mode "align"."""
        return self.kind is GroupKind.MAMBA and self.mamba_mode == "align"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {self.block_size}")
        if self.kind is GroupKind.SLIDING and self.window < 1:
            raise ValueError(f"a sliding group needs a window of at least 1 token, not {self.window}")
        if self.kind is GroupKind.CHUNKED_LOCAL and self.chunk < 1:
            raise ValueError(f"a chunked-local group needs a chunk of at least 1 token, not {self.chunk}")
        if self.num_speculative_blocks < 0:
            raise ValueError(f"num_speculative_blocks must be at least 0, not {self.num_speculative_blocks}")


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The KV cache of one engine.

    `num_blocks` counts block 0, the null block, which is never handed out. `hash_block_size` (tokens per
    block hash, default: the first group's block size) must divide every group's block size when caching is
    on.
    """

    num_blocks: int
    block_size: int = 16
    enable_caching: bool = True
    groups: tuple[KVGroupSpec, ...] = ()
    hash_block_size: int = 0
    window_retention_tokens: int | Literal["release"] | None = "release"
    """Which blocks of sliding-window groups enter the prefix cache, where the release enters only blocks that
    can be hit: None at every common block boundary, 0 only where a replay of the prompt starts, n also
    every n tokens.
    """

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (block 0 is the null block), not {self.num_blocks}"
            )
        if not self.groups:
            object.__setattr__(self, "groups", (KVGroupSpec(block_size=self.block_size),))
        if not self.hash_block_size:
            object.__setattr__(self, "hash_block_size", self.groups[0].block_size)
        if self.enable_caching:
            for group in self.groups:
                if group.block_size % self.hash_block_size:
                    raise ValueError(
                        f"hash_block_size {self.hash_block_size} does not divide the block size "
                        f"{group.block_size} of a {group.kind} group"
                    )

    @property
    def common_block_size(self) -> int:
        """Least common multiple of the groups' block sizes, tokens: hit lengths are multiples of it."""
        return lcm(*(group.block_size for group in self.groups))

    @property
    def common_state_size(self) -> int:
        """The same where hits may end inside blocks of Mamba "align" groups, at any of their block hashes."""
        sizes = (self.hash_block_size if group.is_aligned else group.block_size for group in self.groups)
        return lcm(*sizes)


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Speculative decoding with `num_speculative_tokens` drafts per request and step.

    What each kind of drafter costs stands in `scheduler.speculation`. `lookahead_hashes` (None: as the
    release does) lets block hashes cover the tokens that an eagle or mtp_multi drafter reads ahead;
    `parallel` drafts all tokens in one pass; `drafts_by_batch` gives `(first, last, drafts)` for steps of
    so many requests.
    """

    kind: Literal["ngram", "draft_model", "eagle", "mtp_multi", "dflash"]
    num_speculative_tokens: int
    lookahead_hashes: bool | None = None
    parallel: bool = False
    drafts_by_batch: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens must be at least 1, not {self.num_speculative_tokens}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies of one engine; token counts unless said otherwise.

    `max_num_batched_tokens` is the token budget of a step, `max_num_seqs` the longest running list,
    `long_prefill_token_threshold` caps one request's tokens in a step (0: no cap), `max_loras` the number of
    distinct adapters in a step (None: LoRA off), `pipeline_parallel_size` the number of stages. None in a
    setting of a later release means what the release does by itself.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1
    speculative: SpeculativeConfig | None = None
    max_loras: int | None = None
    kv_load_failure_policy: Literal["recompute", "fail"] | None = None
    include_finished_set: bool = False
    eos_token_id: int = field(default=2)
    reserve_full_prompt: bool | None = None
    """Admission needs room for the whole prompt, not only for the first chunk."""
    watermark: float = 0.0
    """Share of the blocks that an admission beside running requests must leave free."""
    max_num_scheduled_tokens: int | None = None
    """Token budget of a step if smaller than the batch size `max_num_batched_tokens`."""
    max_active: int | None = None
    """Most running requests if less than `max_num_seqs`."""
    long_prefill_adaptive: bool = False
    """The threshold, if there is one, is at least the batch size divided by the number of requests."""
    prefill_interval: int = 1
    """While something decodes, prefills take part only in every so many steps."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "pipeline_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold must not be negative, is {self.long_prefill_token_threshold}"
            )
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy must be 'fcfs' or 'priority', not {self.policy!r}")

    @property
    def largest_chunk_tokens(self) -> int:
        """The most tokens of one request's prefill in a step."""
        return min(
            self.max_num_batched_tokens, self.long_prefill_token_threshold or self.max_num_batched_tokens
        )

    def batches_in_flight(self, rules: Rules) -> int:
        """Batches in flight at most, the one being planned included (vLLM: `max_concurrent_batches`).

        One for each pipeline stage; ahead of the GPU at least two, or one more than stages in later releases.
        """
        stages = self.pipeline_parallel_size
        if not self.async_scheduling:
            return stages
        return stages + 1 if rules.pipelines_plan_one_ahead else max(2, stages)
