"""A world in one line: requests as tuples, a step time that the test dictates, and what it left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cost_models import BOUNDS, DecodeRun, StepCost, StepShape
from scheduler import KVCacheConfig, SchedulerConfig
from sim.cluster.replica_spec import ReplicaSpec
from sim.cluster.router import ROUTERS
from sim.cluster.watched import Watch
from sim.cluster.world import World
from sim.results.metrics import RequestTimes, request_times
from sim.workload import RequestTable, Workload

PARTS = ("victim_policy", "waiting_order", "offload", "release", "speculation", "grammars", "external_cache")
"""Parts of a replica that a test may give."""

OF_REQUESTS = {"grammars", "external_cache"}
"""Those that a world makes for its table of requests; a test gives what comes of that."""


def _whatever_is_asked(part: object, table: RequestTable) -> object:
    return part


@dataclass
class FixedTimer:
    """Every step takes what `gpu_s` says (a number, or a function of the shape); remembers the shapes it
    saw."""

    gpu_s: float | Callable[[StepShape], float] = 1.0
    host_s: float = 0.0
    num_stages: int = 1
    shapes: list[StepShape] = field(default_factory=list)

    def decode_step(self, decodes: int, context: int, longest: int) -> StepCost:
        return self.step(
            StepShape(decodes, decodes, context, longest, num_sampled=decodes, num_requests=decodes)
        )

    def decode_run(self, decodes: int, context: int, longest: int, num_steps: int) -> DecodeRun:
        costs = [self.decode_step(decodes, context + i * decodes, longest + i) for i in range(num_steps)]
        gpu_s, stage_s = [cost.gpu_s for cost in costs], [cost.stage_s for cost in costs]
        return DecodeRun(self.host_s, gpu_s, stage_s, [BOUNDS.index(cost.bound) for cost in costs])

    def step(self, shape: StepShape) -> StepCost:
        self.shapes.append(shape)
        gpu_s = self.gpu_s(shape) if callable(self.gpu_s) else self.gpu_s
        return StepCost(gpu_s, self.host_s, "weights", gpu_s / self.num_stages)


def make_table(
    arrival_s: Sequence[float],
    prompt: int | Sequence[int] = 10,
    output: int | Sequence[int] = 1,
    *,
    rejected: Sequence[int] = (),
) -> RequestTable:
    refused = np.isin(np.arange(len(arrival_s)), np.asarray(rejected, dtype=int))
    return RequestTable.of(arrival_s, prompt, output, rejected=refused)


def make_world(
    table: RequestTable,
    timer: FixedTimer | None = None,
    *,
    max_concurrency: int | None = None,
    ignore_eos: bool = False,
    router: str = "round_robin",
    num_replicas: int = 1,
    num_blocks: int = 1000,
    block_size: int = 16,
    front_end_s: float = 0.0,
    front_end_stream_s: float = 0.0,
    caching: bool = True,
    check: bool = True,
    keep_steps: bool = True,
    warmup_s: float = 0.0,
    seed: int = 0,
    plain: bool = False,
    watch: Watch | None = None,
    **limits: object,
) -> World:
    timer = timer or FixedTimer()
    parts = {name: limits.pop(name) for name in PARTS if name in limits}
    for name in OF_REQUESTS & parts.keys():
        parts[name] = partial(_whatever_is_asked, parts[name])
    config = SchedulerConfig(
        **{"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096}
        | {"pipeline_parallel_size": timer.num_stages}
        | limits
    )
    spec = ReplicaSpec(
        config,
        KVCacheConfig(num_blocks, block_size, caching),
        timer,
        front_end_s=front_end_s,
        front_end_stream_s=front_end_stream_s,
        **parts,
    )
    workload = Workload(
        table,
        "open" if max_concurrency is None else "closed",
        max_concurrency=max_concurrency,
        ignore_eos=ignore_eos,
    )
    return World(
        workload,
        spec,
        ROUTERS[router](np.random.default_rng(seed)),
        num_replicas=num_replicas,
        keep_steps=keep_steps,
        warmup_s=warmup_s,
        check=check,
        plain=plain,
        watch=watch,
    )


def times_of(world: World, end_s: float = 0.0) -> RequestTimes:
    recorder = world.recorder
    return request_times(
        recorder,
        recorder.token_times(),
        np.asarray(world._table.prompt_tokens, dtype=np.int64),
        warmup_s=0.0,
        end_s=end_s,
    )


def step_spans(world: World, replica: int = 0) -> list[tuple[float, float]]:
    start_s, end_s, _ = world.recorder.steps[replica].kept()
    return list(zip(start_s.tolist(), end_s.tolist(), strict=True))


def token_times_s(world: World, request_id: int) -> list[float]:
    """Every token time of one request, written out."""
    recorder, tokens = world.recorder, world.recorder.token_times()
    found: list[float] = []
    for i in np.flatnonzero(tokens.request == request_id):
        end_s = recorder.steps[tokens.replica[i]].end_s()
        found += end_s[tokens.first_step[i] : tokens.first_step[i] + tokens.num_steps[i]].tolist()
    return found
