"""What makes an engine replica: everything that the replicas of a fleet have in common.

How long a request fits into its KV cache follows from it: what can never fit is refused, not tried for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler import EngineCore, GroupKind, KVCacheConfig, KVGroupSpec, SchedulerConfig
from scheduler.connector import KVConnector
from scheduler.engine_core import RELEASE_0_16
from scheduler.policies import AnyWaitingOrder, VictimPolicy
from scheduler.release import Release
from sim.cluster.clock import ProgressGuard
from sim.cluster.connectors import OffloadSpec
from sim.cluster.external_cache import ExternalCacheSpec
from sim.cluster.grammars import GrammarSpec
from sim.cluster.model_runner import SpeculationSpec
from sim.cluster.step_shape import StepTimer
from sim.workload import RequestTable


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """Engines of the user's own vLLM: made for a replica's connector, and watched by a guard of their own."""

    make: Callable[[KVConnector | None], EngineCore]
    guard: type[ProgressGuard]


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What makes an engine replica; the replicas of a fleet are equal.

    release: whose rules the engine follows. front_end_s: from a request's arrival until the engine knows
    of it, and front_end_stream_s more for each in flight. windows: the model's
    attention windows in tokens, as the step timer expects them. victim_policy and waiting_order make a policy
    for each replica (None: as the scheduler's configuration says). offload: preempted requests keep their KV
    on the host (None: it is computed again). speculation: how drafts are made, where the scheduler's
    configuration says that they are. pause_events: when (s) the engine is paused, and to which level of
    `EngineCore.pause`. installed: who makes engines in place of the mirror.

    external_cache and grammars depend on what requests ask for, so the world calls them with its table of
    requests. external_cache: KV of prefixes outside the engines; an engine has this or offload, or neither.
    grammars: how they are compiled, None where no request needs one.
    """

    scheduler: SchedulerConfig
    kv_cache: KVCacheConfig
    timer: StepTimer
    release: Release = RELEASE_0_16
    front_end_s: float = 0.0
    front_end_stream_s: float = 0.0
    windows: tuple[int, ...] = ()
    victim_policy: Callable[[], VictimPolicy] | None = None
    waiting_order: Callable[[], AnyWaitingOrder] | None = None
    offload: OffloadSpec | None = None
    external_cache: Callable[[RequestTable], ExternalCacheSpec] | None = None
    speculation: SpeculationSpec | None = None
    grammars: Callable[[RequestTable], GrammarSpec | None] | None = None
    pause_events: tuple[tuple[float, int], ...] = ()
    installed: InstalledSpec | None = None

    @property
    def depth(self) -> int:
        """Batches in flight."""
        return self.scheduler.batches_in_flight(self.release.rules)

    @property
    def is_pipeline_ahead(self) -> bool:
        """Whether a pipeline schedules ahead, so that tokens in flight are inputs of batches in flight."""
        return self.scheduler.async_scheduling and self.scheduler.pipeline_parallel_size > 1


def kv_capacity_tokens(config: KVCacheConfig, max_num_batched_tokens: int, most_tokens: int) -> int:
    """Most tokens, up to `most_tokens`, that one request can have in the KV cache with nobody beside it.

    Block 0 is the null block and holds nothing. A group with a window or a chunk needs no more than that and
    the tokens of one step (rounded up to blocks, and one block more where the window starts inside a block).
    """
    usable = config.num_blocks - 1

    def fits(tokens: int) -> bool:
        return sum(_blocks(group, tokens, max_num_batched_tokens) for group in config.groups) <= usable

    low, high = 0, most_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _blocks(group: KVGroupSpec, tokens: int, max_num_batched_tokens: int) -> int:
    if group.kind is GroupKind.SLIDING:
        kept = min(tokens, group.window - 1 + max_num_batched_tokens)
        return -(-kept // group.block_size) + 1
    if group.kind is GroupKind.CHUNKED_LOCAL:
        tokens = min(tokens, group.chunk + max_num_batched_tokens)
    elif group.kind is GroupKind.MAMBA and group.mamba_mode == "none":
        return 1 + group.num_speculative_blocks
    return -(-tokens // group.block_size)
