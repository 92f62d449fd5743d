"""From the words of a scenario to an engine that can run: limits, KV cache and step costs of a replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cost_models import (
    CostModelError,
    DoesNotFitError,
    Gpu,
    MemoryPlan,
    Model,
    Parallelism,
    SpecError,
    StepCostModel,
    UnknownNameError,
    engine_profile,
    gpu,
    memory_plan,
    model,
)
from cost_models.memory import kv_bytes_per_token
from scheduler import GroupKind, KVCacheConfig, KVGroupSpec, SchedulerConfig
from sim.cluster.capacity import kv_capacity_tokens
from sim.cluster.replica_spec import ReplicaSpec
from sim.errors import InputError
from sim.feature_setup import (
    external_cache_maker,
    grammar_maker,
    plan_with_features,
    speculation_spec,
    speculative_config,
)
from sim.policy_setup import engine_policies, offload_spec
from sim.scenario import Scenario
from sim.scenario.engine import PAUSE_LEVELS, EngineSection
from sim.scenario.resolve import release_notes, release_of, switch_notes
from sim.scenario.scenario import resolved_engine


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """A replica ready to be built, and facts that a report names; no `plan` where the blocks were given.

    `engine` is the scenario's section with every default filled in.
    """

    engine: EngineSection
    replica: ReplicaSpec
    model: Model
    gpu: Gpu
    plan: MemoryPlan | None
    calibration_id: str
    notes: tuple[str, ...]

    @property
    def num_gpu_blocks(self) -> int:
        """KV blocks of a replica that can hold tokens: all but the null block."""
        return self.replica.kv_cache.num_blocks - 1


def engine_setup(scenario: Scenario, *, allow_plugins: bool = False) -> EngineSetup:
    """The engine that the scenario describes; what it leaves open takes the release's default on that GPU.

    Raises `InputError`, with the scenario's own paths, for names that nobody knows, for a model that does not
    fit and for a split that does not divide it.
    """
    engine = resolved_engine(scenario)
    assert engine.max_num_seqs is not None
    assert engine.max_num_batched_tokens is not None
    assert engine.max_model_len is not None
    assert engine.async_scheduling is not None
    part, named = gpu(scenario.gpu), model(scenario.model)
    spec = named.model
    parallel = Parallelism(engine.tensor_parallel_size, engine.pipeline_parallel_size)
    weights = scenario.weight_dtype if scenario.weight_dtype != "auto" else named.weight_dtype or "auto"
    with _faults_of(scenario, "engine.tensor_parallel_size"):
        timer = StepCostModel.build(
            spec,
            part,
            parallel,
            weight_dtype=weights,
            kv_cache_dtype=engine.kv_cache_dtype,
            engine_version=engine.version,
            async_scheduling=engine.async_scheduling,
            enforce_eager=engine.enforce_eager,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            greedy=scenario.workload.temperature == 0,
        )
        plan = None
        if engine.num_gpu_blocks_override is None:
            plan = memory_plan(
                spec,
                part,
                parallel,
                weight_dtype=weights,
                kv_cache_dtype=engine.kv_cache_dtype,
                engine_version=engine.version,
                max_num_seqs=engine.max_num_seqs,
                max_num_batched_tokens=engine.max_num_batched_tokens,
                max_model_len=engine.max_model_len,
                gpu_memory_utilization=engine.gpu_memory_utilization,
                block_size=engine.block_size,
                enforce_eager=engine.enforce_eager,
            )
            plan = plan_with_features(plan, engine, spec, parallel, weights)
    kv_cache = _kv_cache(scenario, engine, spec, plan)
    asked = engine.max_model_len
    max_model_len = kv_capacity_tokens(kv_cache, engine.max_num_batched_tokens, asked)
    notes = [*release_notes(engine), *switch_notes(engine)]
    if max_model_len < 2:
        fault = scenario.fault(
            "engine.num_gpu_blocks_override", f"{kv_cache.num_blocks} KV blocks cannot hold two tokens"
        )
        raise InputError([fault])
    if max_model_len < asked:
        notes.append(
            f"max_model_len is {max_model_len} in place of {asked}: the KV cache of {kv_cache.num_blocks} "
            "blocks holds no more for one request (vLLM would refuse to start)"
        )
    if not timer.calibration.is_measured:
        notes.append(timer.calibration.note)
    if engine.lora is not None:
        notes.append("LoRA: slots and memory are those of the engine; the adapters' own kernels take no time")
    limits = SchedulerConfig(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        policy=engine.scheduling_policy,
        watermark=engine.watermark,
        reserve_full_prompt=engine.reserve_full_prompt,
        async_scheduling=engine.async_scheduling,
        max_num_scheduled_tokens=engine.max_num_scheduled_tokens,
        max_active=engine.max_active,
        long_prefill_adaptive=engine.long_prefill_adaptive,
        prefill_interval=engine.prefill_interval,
        speculative=speculative_config(engine),
        max_loras=engine.lora.max_loras if engine.lora else None,
    )
    with _faults_of(scenario, "engine.speculative_config.model"):
        speculation = speculation_spec(scenario, engine, spec, part, weights)
    policies = engine_policies(scenario, engine, allow_plugins=allow_plugins)
    window = spec.sliding_window
    profile = engine_profile(engine.version)
    replica = ReplicaSpec(
        limits,
        kv_cache,
        timer,
        release_of(engine),
        num_stages=engine.pipeline_parallel_size,
        front_end_s=profile.frontend_s,
        front_end_stream_s=profile.frontend_stream_s,
        windows=(window.tokens,) if window else (),
        victim_policy=policies.victim_policy,
        waiting_order=policies.waiting_order,
        offload=offload_spec(engine, kv_bytes_per_token(spec, parallel, engine.kv_cache_dtype)),
        pause_events=tuple((event.at_s, PAUSE_LEVELS[event.state]) for event in engine.pause_events),
        speculation=speculation,
        grammars=grammar_maker(scenario),
        external_cache=external_cache_maker(scenario, spec, parallel),
    )
    return EngineSetup(engine, replica, spec, part, plan, timer.calibration_id, tuple(notes))


def kv_groups(spec: Model, block_size: int) -> tuple[tuple[KVGroupSpec, ...], int]:
    """KV cache groups of a model, and the layers in each: layers of one kind share block tables.

    A model with layers of two kinds has groups of equal size that share one pool: as many layers as the
    smaller kind has, or as the larger when they differ by less than a quarter (the last group is then
    padded).
    """
    full = KVGroupSpec(GroupKind.FULL, block_size)
    if spec.sliding_window is None:
        return (full,), spec.num_layers
    window, windowed = spec.sliding_window, spec.sliding_window.num_layers
    if window.chunked:
        local = KVGroupSpec(GroupKind.CHUNKED_LOCAL, block_size, chunk=window.tokens)
    else:
        local = KVGroupSpec(GroupKind.SLIDING, block_size, window=window.tokens)
    whole = spec.num_layers - windowed
    if whole == 0:
        return (local,), windowed
    small, large = sorted((whole, windowed))
    size = large if large < 1.25 * small else small
    return (full,) * -(-whole // size) + (local,) * -(-windowed // size), size


def _kv_cache(
    scenario: Scenario, engine: EngineSection, spec: Model, plan: MemoryPlan | None
) -> KVCacheConfig:
    groups, layers = kv_groups(spec, engine.block_size)
    if plan is None:
        assert engine.num_gpu_blocks_override is not None
        num_blocks = engine.num_gpu_blocks_override
    elif layers == spec.num_layers:
        num_blocks = plan.num_gpu_blocks
    else:
        # A block of the pool then holds the tokens of one group's layers only.
        num_blocks = int(
            plan.kv_cache_bytes * spec.num_layers // (layers * plan.bytes_per_token * engine.block_size)
        )
    if num_blocks < 2:
        fault = scenario.fault("engine.gpu_memory_utilization", f"leaves room for {num_blocks} KV blocks")
        raise InputError([fault])
    retention = engine.window_retention_tokens
    return KVCacheConfig(
        num_blocks,
        engine.block_size,
        engine.enable_prefix_caching,
        groups,
        window_retention_tokens="release" if retention is None else retention,
    )


@contextmanager
def _faults_of(scenario: Scenario, path: str) -> Iterator[None]:
    """Turn errors of the cost models into faults at `path`, or at the field that the error is about."""
    try:
        yield
    except UnknownNameError as error:
        field = {"model": "model", "gpu": "gpu", "weight dtype": "weight_dtype"}.get(error.kind, path)
        raise InputError([scenario.fault(field, str(error))]) from error
    except SpecError as error:
        raise InputError(
            [scenario.fault(path, f"{error.subject}: {each}") for each in error.faults]
        ) from error
    except DoesNotFitError as error:
        raise InputError([scenario.fault(path, str(error))]) from error
    except CostModelError as error:
        raise InputError([scenario.fault(path, str(error))]) from error
