"""What a scenario must satisfy beyond its single fields: what vLLM would refuse, what makes no sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cost_models
from cost_models.engines import version_key
from sim.errors import Fault, InputError
from sim.scenario.engine import EngineSection
from sim.scenario.policies import OffloadMode
from sim.scenario.resolve import filled_policies, schedules_ahead_by_default, schedules_ngram_ahead
from sim.scenario.rules import DRAFTS_BY_BATCH_SINCE, SINCE, knows
from sim.scenario.scenario import Scenario
from sim.scenario.workload import (
    MixWorkload,
    TraceWorkload,
    class_in_mix,
    plain_parts,
    unknown_class,
)

POLICIES = ("victim_policy", "waiting_order", "preemption_mode")
"""Choices that the mirror leaves to the user and an installed scheduler makes itself."""

DRAFT_MODELS_SINCE = (0, 14)
LOADS_INTO_SEVERAL_GROUPS_SINCE = "0.33.0"
"""Loads in the background into several KV groups: by this release; 0.16.0 fails with them."""
"""vLLM 0.13.0 refuses draft models: NotImplementedError."""


def scenario_faults(scenario: Scenario) -> list[Fault]:
    """Every fault that takes more than one field, or the catalogues, to see."""
    faults = [
        *_time_faults(scenario),
        *_calibration_faults(scenario),
        *_switch_faults(scenario),
        *_speculative_faults(scenario),
        *_external_cache_faults(scenario),
        *_workload_faults(scenario),
    ]
    try:
        engine = scenario.resolved.engine
        faults += [*_limit_faults(scenario, engine), *_policy_faults(scenario, engine)]
        return [*faults, *_installed_faults(scenario, engine)]
    except InputError as error:
        return [*faults, *error.faults]


def _time_faults(scenario: Scenario) -> Iterator[Fault]:
    if scenario.horizon_s is not None and scenario.warmup_s >= scenario.horizon_s:
        yield scenario.fault("warmup_s", f"must end before horizon_s {scenario.horizon_s:g}")


def _calibration_faults(scenario: Scenario) -> Iterator[Fault]:
    if scenario.calibration is not None:
        try:
            cost_models.calibration_for(scenario.gpu, Path(scenario.calibration))
        except cost_models.CalibrationError as error:
            yield scenario.fault("calibration", str(error))


def _limit_faults(scenario: Scenario, engine: EngineSection) -> Iterator[Fault]:
    budget, seqs, context = engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len
    assert budget is not None
    assert seqs is not None
    assert context is not None
    blamed = "max_num_seqs" if scenario.engine.max_num_seqs is not None else "max_num_batched_tokens"
    if budget < seqs:
        yield scenario.fault(
            f"engine.{blamed}", f"max_num_batched_tokens {budget} is below max_num_seqs {seqs}"
        )
    if not engine.enable_chunked_prefill and budget < context:
        yield scenario.fault(
            "engine.max_num_batched_tokens",
            f"without chunked prefill the budget {budget} must reach max_model_len {context}",
        )
    elif not engine.enable_chunked_prefill and (engine.max_num_scheduled_tokens or budget) < context:
        yield scenario.fault(
            "engine.max_num_scheduled_tokens",
            f"without chunked prefill a step must take max_model_len {context}",
        )


def _switch_faults(scenario: Scenario) -> Iterator[Fault]:
    """Switches that the release lacks, and values that no engine takes."""
    engine = scenario.engine
    for name, first in SINCE.items():
        off = type(engine).model_fields[name].default
        if getattr(engine, name) != off and not knows(engine.version, name):
            yield scenario.fault(
                f"engine.{name}", f"known of vLLM since {first}; engine.version is {engine.version}"
            )
    times = [event.at_s for event in engine.pause_events]
    if times != sorted(times):
        yield scenario.fault("engine.pause_events", "must be in the order of time")


def _speculative_faults(scenario: Scenario) -> Iterator[Fault]:
    """What vLLM would refuse."""
    engine, speculative = scenario.engine, scenario.engine.speculative_config
    if speculative is None:
        return
    if engine.pipeline_parallel_size > 1:
        yield scenario.fault(
            "engine.pipeline_parallel_size", "speculative decoding does not work with pipeline stages"
        )
    if speculative.method == "ngram" and engine.async_scheduling and not schedules_ngram_ahead(engine):
        yield scenario.fault(
            "engine.async_scheduling",
            f"vLLM {engine.version} makes ngram drafts on the host and cannot schedule ahead of them; use "
            "eagle or draft_model, or leave it out",
        )
    if speculative.drafts_by_batch:
        yield from _drafts_by_batch_faults(scenario, engine)
    if speculative.model is None:
        return
    if version_key(engine.version) < DRAFT_MODELS_SINCE:
        yield scenario.fault(
            "engine.speculative_config.method", f"vLLM {engine.version} knows no draft models"
        )
    draft, target = (cost_models.model(name).model for name in (speculative.model, scenario.model))
    if draft.vocab != target.vocab:
        yield scenario.fault(
            "engine.speculative_config.model",
            f"has a vocabulary of {draft.vocab} tokens and {scenario.model} one of {target.vocab}; "
            "they must be the same",
        )


def _drafts_by_batch_faults(scenario: Scenario, engine: EngineSection) -> Iterator[Fault]:
    path = "engine.speculative_config.drafts_by_batch"
    if version_key(engine.version) < version_key(DRAFTS_BY_BATCH_SINCE):
        yield scenario.fault(
            path, f"known of vLLM since {DRAFTS_BY_BATCH_SINCE}; engine.version is {engine.version}"
        )
    ahead = engine.async_scheduling
    if not (schedules_ahead_by_default(engine) if ahead is None else ahead):
        yield scenario.fault(path, "has an effect with asynchronous scheduling only")


def _external_cache_faults(scenario: Scenario) -> Iterator[Fault]:
    """What vLLM would refuse, and what is not simulated."""
    if scenario.cluster.external_cache is None:
        return
    path, version = "cluster.external_cache", scenario.engine.version
    if _mixes_attention(scenario.model):
        known = version_key(version) >= version_key(LOADS_INTO_SEVERAL_GROUPS_SINCE)
        if scenario.cluster.external_cache.asynchronous and not known:
            yield scenario.fault(
                f"{path}.asynchronous",
                f"{scenario.model} has layers with and without windows, and vLLM {version} cannot load both "
                "in the background (0.16.0 fails, 0.33.0 can); false, or a later version",
            )
        if scenario.engine.scheduler == "vllm":
            yield scenario.fault(
                path, "with engine.scheduler: vllm for models of one kind of attention alone"
            )
    mode = scenario.engine.preemption_mode
    if mode is not None and mode.kind == "offload":
        yield scenario.fault(
            path, "an engine has one KV connector, and preemption_mode offload takes it; choose one of them"
        )


def _mixes_attention(model: str) -> bool:
    """Whether some of a model's layers have a window and some not, so that they are groups of their own."""
    spec = cost_models.model(model).model
    return spec.sliding_window is not None and spec.sliding_window.num_layers < spec.num_layers


def _installed_faults(scenario: Scenario, engine: EngineSection) -> Iterator[Fault]:
    """What an installed scheduler cannot be told; `engine` has its defaults filled in."""
    if engine.scheduler == "mirror":
        if engine.scheduler_cls is not None:
            yield scenario.fault("engine.scheduler_cls", "takes effect with engine.scheduler: vllm only")
        return
    alone = "is of the mirror alone; with engine.scheduler: vllm the installed scheduler decides"
    if engine.rules:
        yield scenario.fault("engine.rules", alone)
    implied = filled_policies(engine.model_copy(update=dict.fromkeys(POLICIES)), scenario.gpu)
    for name in POLICIES:
        if getattr(engine, name) != implied[name]:
            yield scenario.fault(f"engine.{name}", f"{getattr(engine, name).kind} {alone}")


def _workload_faults(scenario: Scenario) -> Iterator[Fault]:
    """Every fault that takes more than one field of the workload to see."""
    for path, part in plain_parts(scenario.workload).items():
        if part.lora is not None and scenario.engine.lora is None:
            yield scenario.fault(f"{path}.lora", "LoRA is off; give engine.lora, such as {max_loras: 4}")
        if part.grammar is not None and scenario.engine.grammar is None:
            yield scenario.fault(
                f"{path}.grammar",
                "no grammar is compiled; give engine.grammar, such as {compile_s: 0.1}",
            )
        if isinstance(part, TraceWorkload) and part.follow_sessions and part.prefixes:
            yield scenario.fault(f"{path}.prefixes", "not together with follow_sessions")
        if isinstance(scenario.workload, MixWorkload):
            for name in ("ignore_eos", "temperature", "length_estimate", "classes"):
                value = getattr(part, name)
                if value is not None and value is not False:
                    yield scenario.fault(f"{path}.{name}", f"holds for all parts alike; give workload.{name}")
    yield from _class_faults(scenario)


def _class_faults(scenario: Scenario) -> Iterator[Fault]:
    section = scenario.workload
    known: list[str] = []
    parts = section.workloads if isinstance(section, MixWorkload) else {"": section}
    for name, part in parts.items():
        if isinstance(part, TraceWorkload):
            return  # only the trace can tell its classes
        known += [class_in_mix(name, own) if name else own for own in part.class_names]
    for name in section.classes or ():
        if name not in known:
            yield scenario.fault(f"workload.classes.{name}", unknown_class(name, known))


def _policy_faults(scenario: Scenario, engine: EngineSection) -> Iterator[Fault]:
    """Combinations that make no sense; `engine` has its defaults filled in."""
    victim, order, mode = engine.victim_policy, engine.waiting_order, engine.preemption_mode
    assert victim is not None
    assert order is not None
    if victim.kind == "priority" and order.kind not in ("priority", "aged_priority", "plugin"):
        given = "victim_policy" if scenario.engine.victim_policy else "waiting_order"
        yield scenario.fault(
            f"engine.{given}",
            f"victims by priority under a waiting order of kind {order.kind}: the victim would be admitted "
            "again at once; use waiting_order priority or aged_priority, or scheduling_policy priority",
        )
    if scenario.workload.length_estimate is None:
        for name, policy, kind in (
            ("victim_policy", victim, "shortest_remaining"),
            ("waiting_order", order, "shortest_job_first"),
        ):
            if policy.kind == kind:
                yield scenario.fault(
                    f"engine.{name}", f"{kind} goes by length estimates; give workload.length_estimate"
                )
    if isinstance(mode, OffloadMode) and cost_models.model(scenario.model).model.sliding_window is not None:
        yield scenario.fault(
            "engine.preemption_mode",
            f"offload needs a model with full attention in all layers, which {scenario.model} has not",
        )
