"""From the words of a scenario to an engine that can run: its deployment, its KV cache and its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path

import numpy as np

from cost_models import (
    Calibration,
    CostModelError,
    Deployment,
    MemoryPlan,
    Model,
    Parallelism,
    SpecError,
    StepCostModel,
    UnknownNameError,
    calibration_for,
    engine_profile,
    memory_plan,
    model,
)
from cost_models.memory import kv_bytes_per_token, lora_bytes
from cost_models.weights import model_weight_dtype, weights_bytes
from scheduler import GroupKind, KVCacheConfig, KVGroupSpec, SchedulerConfig, SpeculativeConfig
from sim.cluster.connectors import OffloadSpec
from sim.cluster.external_cache import ExternalCacheSpec
from sim.cluster.grammars import GrammarSpec
from sim.cluster.model_runner import Acceptance, DraftModel, FixedDrafter, ModelDrafter, SpeculationSpec
from sim.cluster.replica_spec import ReplicaSpec, kv_capacity_tokens
from sim.errors import InputError
from sim.installed.make import installed_spec
from sim.installed.present import notes as installed_notes
from sim.plugins import victim_policy_maker, waiting_order_maker
from sim.random_streams import streams
from sim.scenario import EngineSection, Scenario
from sim.scenario.cluster import LruHits
from sim.scenario.engine import PAUSE_LEVELS
from sim.scenario.policies import OffloadMode
from sim.scenario.resolve import release_notes, release_of, switch_notes
from sim.workload import RequestTable
from sim.workload.draws import draw_times_s


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """An engine ready to run: what is deployed, what makes a replica, and facts that a report names.

    `engine` is the scenario's section with every default filled in; `plan` is None where the blocks were
    given.
    """

    engine: EngineSection
    deployment: Deployment
    replica: ReplicaSpec
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
    engine = scenario.resolved.engine
    with _faults_of(scenario, "calibration"):
        fitted = calibration_for(scenario.gpu, Path(scenario.calibration) if scenario.calibration else None)
    with _faults_of(scenario, "engine.tensor_parallel_size"):
        deployment = deployment_of(scenario)
        timer = StepCostModel(deployment, fitted=fitted)
        drafter = _drafter_deployment(engine, deployment)
        plan = None
        if engine.num_gpu_blocks_override is None:
            plan = _plan_with_features(memory_plan(deployment), engine, deployment, drafter)
    kv_cache = _kv_cache(scenario, deployment, plan)
    limits = _limits(scenario, kv_cache)
    notes = [*release_notes(engine), *switch_notes(engine)]
    if engine.scheduler == "vllm":
        notes += installed_notes(scenario)
    asked = engine.max_model_len
    if asked is not None and limits.max_model_len < asked:
        notes.append(
            f"max_model_len is {limits.max_model_len} in place of {asked}: the KV cache of "
            f"{kv_cache.num_blocks} blocks holds no more for one request (vLLM would refuse to start)"
        )
    if by_name := model(scenario.model).note:
        notes.append(by_name)
    if not fitted.is_measured:
        notes.append(fitted.note)
    if fitted.machine.fitted:
        notes.append(f"{', '.join(fitted.machine.fitted)}: as one machine has them ({fitted.source})")
    if engine.lora is not None:
        notes.append("LoRA: slots and memory are those of the engine; the adapters' own kernels take no time")
    with _faults_of(scenario, "engine.speculative_config.model"):
        speculation = _speculation(scenario, drafter, fitted)
    profile = engine_profile(engine.version)
    window = deployment.model.sliding_window
    replica = ReplicaSpec(
        limits,
        kv_cache,
        timer,
        release_of(engine),
        front_end_s=profile.frontend_s,
        front_end_stream_s=profile.frontend_stream_s,
        windows=(window.tokens,) if window else (),
        victim_policy=victim_policy_maker(scenario, allow_plugins=allow_plugins),
        waiting_order=waiting_order_maker(scenario, allow_plugins=allow_plugins),
        offload=_offload(engine, deployment),
        external_cache=_external_cache(scenario, deployment),
        speculation=speculation,
        grammars=_grammars(scenario),
        pause_events=tuple((event.at_s, PAUSE_LEVELS[event.state]) for event in engine.pause_events),
        installed=installed_spec(scenario, limits, kv_cache, allow_plugins=allow_plugins),
    )
    return EngineSetup(engine, deployment, replica, plan, timer.calibration_id, tuple(notes))


def deployment_of(scenario: Scenario) -> Deployment:
    """What the scenario deploys, as the cost models see it."""
    engine = scenario.resolved.engine
    return Deployment.of(
        scenario.model,
        scenario.gpu,
        Parallelism(engine.tensor_parallel_size, engine.pipeline_parallel_size),
        weight_dtype=scenario.weight_dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        engine_version=engine.version,
        async_scheduling=engine.async_scheduling,
        enforce_eager=engine.enforce_eager,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.block_size,
        greedy=scenario.workload.temperature == 0,
    )


def priority_notes(engine: EngineSection, *, has_priorities: bool) -> list[str]:
    """What a reader should know where requests have priorities; `engine` has its defaults filled in."""
    assert engine.waiting_order is not None
    kind = engine.waiting_order.kind
    if has_priorities and kind in ("fcfs", "shortest_job_first", "fair"):
        return [f"requests have priorities, but the waiting order {kind} does not look at them"]
    return []


# --- scheduler and KV cache -------------------------------------------------------------------------------


def _limits(scenario: Scenario, kv_cache: KVCacheConfig) -> SchedulerConfig:
    """What the scheduler is told: the settings that it has by the same name, and those that it needs in
    another form. `max_model_len` is what the KV cache can hold of one request, if that is less.
    """
    engine = scenario.resolved.engine
    names = [each.name for each in fields(SchedulerConfig) if each.name in EngineSection.model_fields]
    settings = {name: getattr(engine, name) for name in names}
    settings["max_model_len"] = kv_capacity_tokens(
        kv_cache, settings["max_num_batched_tokens"], settings["max_model_len"]
    )
    if settings["max_model_len"] < 2:
        message = f"{kv_cache.num_blocks} KV blocks cannot hold two tokens"
        raise InputError([scenario.fault("engine.num_gpu_blocks_override", message)])
    speculative, section = None, engine.speculative_config
    if section is not None:
        num_drafts, by_batch = section.num_speculative_tokens, section.drafts_by_batch
        speculative = SpeculativeConfig(section.method, num_drafts, drafts_by_batch=by_batch)
    return SchedulerConfig(
        **settings,
        policy=engine.scheduling_policy,
        speculative=speculative,
        max_loras=engine.lora.max_loras if engine.lora else None,
    )


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


def _kv_cache(scenario: Scenario, deployment: Deployment, plan: MemoryPlan | None) -> KVCacheConfig:
    engine, num_layers = scenario.resolved.engine, deployment.model.num_layers
    groups, layers = kv_groups(deployment.model, deployment.block_size)
    if plan is None:
        assert engine.num_gpu_blocks_override is not None
        num_blocks = engine.num_gpu_blocks_override
    elif layers == num_layers:
        num_blocks = plan.num_gpu_blocks
    else:
        # A block of the pool then holds the tokens of one group's layers only.
        num_blocks = int(
            plan.kv_cache_bytes * num_layers // (layers * plan.bytes_per_token * deployment.block_size)
        )
    if num_blocks < 2:
        fault = scenario.fault("engine.gpu_memory_utilization", f"leaves room for {num_blocks} KV blocks")
        raise InputError([fault])
    retention = engine.window_retention_tokens
    return KVCacheConfig(
        num_blocks,
        deployment.block_size,
        engine.enable_prefix_caching,
        groups,
        window_retention_tokens="release" if retention is None else retention,
    )


# --- drafters and adapters --------------------------------------------------------------------------------


def _drafter_deployment(engine: EngineSection, target: Deployment) -> Deployment | None:
    """The model that drafts, beside the target on its GPUs; None without one.

    An EAGLE drafter is one more layer of the target's kind, with its weight dtype.
    """
    section = engine.speculative_config
    if section is None or section.method == "ngram":
        return None
    if section.model is None:
        layer = replace(_with_layers(target.model, 1), name=f"{target.model.name} EAGLE", sliding_window=None)
        draft, weights = layer, target.weight_dtype
    else:
        named = model(section.model)
        draft, weights = named.model, model_weight_dtype(named.model, named.weight_dtype or "auto")
    split = Parallelism(engine.tensor_parallel_size)
    return replace(target, model=draft, parallel=split, weight_dtype=weights, greedy=False)


def _with_layers(spec: Model, num_layers: int) -> Model:
    moe = replace(spec.moe, num_layers=num_layers) if spec.moe else None
    return replace(spec, num_layers=num_layers, moe=moe)


def step_timers(scenario: Scenario, fitted: Calibration) -> tuple[StepCostModel, DraftModel | None]:
    """What times the steps of the scenario's engine under a calibration, and the drafting after them."""
    engine, deployment = scenario.resolved.engine, deployment_of(scenario)
    drafter = _drafter_deployment(engine, deployment)
    return StepCostModel(deployment, fitted=fitted), _draft_model(engine, drafter, fitted)


def _draft_model(engine: EngineSection, drafter: Deployment | None, fitted: Calibration) -> DraftModel | None:
    section = engine.speculative_config
    if section is None:
        return None
    num_drafts, by_batch = section.num_speculative_tokens, section.drafts_by_batch
    if drafter is None or section.draft_pass_s is not None:
        return FixedDrafter(num_drafts, section.draft_pass_s or 0.0, by_batch)
    return ModelDrafter(StepCostModel(drafter, fitted=fitted), num_drafts, by_batch)


def _speculation(
    scenario: Scenario, drafter: Deployment | None, fitted: Calibration
) -> SpeculationSpec | None:
    """Who drafts, and how lucky the drafts are."""
    section, made = scenario.engine.speculative_config, _draft_model(scenario.engine, drafter, fitted)
    if section is None or made is None:
        return None
    return SpeculationSpec(Acceptance(section.rates, streams(scenario.seed)("acceptance")), made)


def _plan_with_features(
    plan: MemoryPlan, engine: EngineSection, target: Deployment, drafter: Deployment | None
) -> MemoryPlan:
    """The memory plan less what a drafter and the slots for adapters take from the KV cache."""
    taken_bytes, more_per_token = 0.0, 0
    if engine.speculative_config is not None and drafter is not None:
        taken_bytes = weights_bytes(drafter.model, drafter.parallel, drafter.weight_dtype)
        if engine.speculative_config.model is None:
            # EAGLE shares the target's embedding and head: what a second layer takes more is all.
            two = _with_layers(drafter.model, 2)
            taken_bytes = weights_bytes(two, drafter.parallel, drafter.weight_dtype) - taken_bytes
        more_per_token = kv_bytes_per_token(drafter)
    if engine.lora is not None:
        lora = engine.lora
        taken_bytes += lora_bytes(target.model, target.parallel, lora.max_loras, lora.max_lora_rank)
    return plan.beside(taken_bytes, more_per_token)


# --- KV outside the GPU, and grammars ---------------------------------------------------------------------


def _offload(engine: EngineSection, deployment: Deployment) -> OffloadSpec | None:
    """Where preempted requests keep their KV, if they do."""
    mode = engine.preemption_mode
    if not isinstance(mode, OffloadMode):
        return None
    assert mode.bandwidth_gb_per_s is not None
    capacity_bytes = inf if mode.host_memory_gb is None else mode.host_memory_gb * 1e9
    return OffloadSpec(kv_bytes_per_token(deployment), mode.bandwidth_gb_per_s * 1e9, capacity_bytes)


def _external_cache(
    scenario: Scenario, deployment: Deployment
) -> Callable[[RequestTable], ExternalCacheSpec] | None:
    """The KV cache outside the engines, and what it has of each request of a table; None without one."""
    section = scenario.cluster.external_cache
    if section is None:
        return None
    parallel, hits, window = deployment.parallel, section.hits, deployment.model.sliding_window
    gpus = parallel.num_gpus // (parallel.tensor if deployment.model.mla else 1)

    def make(table: RequestTable) -> ExternalCacheSpec:
        found = None
        if not isinstance(hits, LruHits):
            draws = streams(scenario.seed)("external_cache").random(len(table))
            prompt = np.asarray(table.prompt_tokens, dtype=np.int64)
            found = np.where(draws < hits.requests, np.floor(hits.prompt * prompt), 0).astype(np.int64)
        return ExternalCacheSpec(
            bytes_per_token=gpus * kv_bytes_per_token(deployment),
            bandwidth_bytes_per_s=section.bandwidth_gb_per_s * 1e9,
            latency_s=section.latency_s,
            asynchronous=section.asynchronous,
            shared=section.shared,
            capacity_tokens=hits.capacity_tokens if isinstance(hits, LruHits) else None,
            found_tokens=found,
            windowed_share=window.num_layers / deployment.model.num_layers if window else 0.0,
            window=window,
        )

    return make


def _grammars(scenario: Scenario) -> Callable[[RequestTable], GrammarSpec | None] | None:
    """How the grammars of a table of requests are compiled; None where the engine has no compiler."""
    section = scenario.engine.grammar
    if section is None:
        return None

    def make(table: RequestTable) -> GrammarSpec | None:
        if table.grammar is None:
            return None
        count = int(table.grammar.max(initial=-1)) + 1
        compile_s = draw_times_s(section.compile_s, count, streams(scenario.seed)("grammar.compile"))
        return GrammarSpec(table.grammar, compile_s, section.workers, section.cache)

    return make


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
    except CostModelError as error:
        raise InputError([scenario.fault(path, str(error))]) from error
