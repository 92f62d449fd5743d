"""What an engine section comes to: the rules of its release, and vLLM's choice in place of every null."""

from __future__ import annotations

import cost_models
from cost_models.engines import version_key
from scheduler.release import Release, release
from sim.scenario.engine import EngineSection
from sim.scenario.policies import (
    FcfsOrder,
    FcfsTailVictim,
    OffloadMode,
    PriorityOrder,
    PriorityVictim,
    RecomputeMode,
)
from sim.scenario.rules import EVERYWHERE, knows, rule_value
from sim.scenario.section import Section

ASYNC_DRAFT_MODELS_SINCE = (0, 26)
"""Before, with a draft model asynchronous scheduling had to be asked for. The release is an estimate from the
date of the change (July 2026); 0.16.0 lies before it and 0.33.0 behind."""


ASYNC_NGRAM_SINCE = (0, 33)
"""By this release asynchronous scheduling stays on with n-grams; 0.16.0 cannot have both."""


class UnknownContextLengthError(ValueError):
    """The catalogue does not know the context length of a model, and the section gives none."""


def filled_engine(engine: EngineSection, model: str, gpu: str) -> EngineSection:
    """The section with every default of its version and of the GPU written out.

    Only `num_gpu_blocks_override` and `scheduler_cls` may stay null, and switches that the release does not
    have. Raises
    `UnknownContextLengthError`.
    """
    defaults = cost_models.engine_defaults(engine.version, gpu, engine.entry_point)
    max_model_len = engine.max_model_len or cost_models.model(model).model.max_model_len
    if max_model_len is None:
        raise UnknownContextLengthError(f"the context length of {model} is not known; give one")
    budget = engine.max_num_batched_tokens
    if budget is None:
        # without chunked prefill a default budget grows until the longest prompt fits into one step
        budget = max(defaults.max_num_batched_tokens, 0 if engine.enable_chunked_prefill else max_model_len)
        # and it is no larger than what all requests together can have
        budget = min(budget, (engine.max_num_seqs or defaults.max_num_seqs) * max_model_len)
    filled: dict[str, object] = {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(defaults.max_num_seqs, budget),  # a default never exceeds the budget
        "block_size": cost_models.default_block_size(engine.version, cost_models.model(model).model, gpu),
        "gpu_memory_utilization": defaults.gpu_memory_utilization,
        "reserve_full_prompt": release_of(engine).defaults.reserve_full_prompt,
        "async_scheduling": defaults.async_scheduling and schedules_ahead_by_default(engine),
    }
    filled = {name: value for name, value in filled.items() if getattr(engine, name) is None}
    engine = engine.model_copy(update=filled | filled_policies(engine, gpu))
    return engine.model_copy(update=_filled_switches(engine))


def filled_policies(engine: EngineSection, gpu: str) -> dict[str, Section]:
    """The policies that `scheduling_policy` implies where they are null, and the host link of the GPU."""
    by_priority = engine.scheduling_policy == "priority"
    mode = engine.preemption_mode or RecomputeMode.model_construct(kind="recompute")
    if isinstance(mode, OffloadMode) and mode.bandwidth_gb_per_s is None:
        mode = mode.model_copy(update={"bandwidth_gb_per_s": cost_models.gpu(gpu).pcie_bytes_per_s / 1e9})
    victim: Section = FcfsTailVictim.model_construct(kind="fcfs_tail")
    order: Section = FcfsOrder.model_construct(kind="fcfs")
    if by_priority:
        victim = PriorityVictim.model_construct(kind="priority")
        order = PriorityOrder.model_construct(kind="priority")
    return {
        "victim_policy": engine.victim_policy or victim,
        "waiting_order": engine.waiting_order or order,
        "preemption_mode": mode,
    }


def _filled_switches(engine: EngineSection) -> dict[str, object]:
    """What the release does where a switch that it has is null; the limits of `engine` are filled in."""
    filled: dict[str, object] = {
        "max_num_scheduled_tokens": engine.max_num_batched_tokens,
        "max_active": engine.max_num_seqs,
        "window_retention_tokens": release_of(engine).defaults.window_retention_tokens,
    }
    return {
        name: value
        for name, value in filled.items()
        if getattr(engine, name) is None and knows(engine.version, name)
    }


def schedules_ahead_by_default(engine: EngineSection) -> bool:
    """Whether the release keeps its default of asynchronous scheduling with this kind of speculation."""
    speculative = engine.speculative_config
    if speculative is None or speculative.method == "eagle":
        return True
    if speculative.method == "ngram":
        return schedules_ngram_ahead(engine)
    return speculative.method == "draft_model" and version_key(engine.version) >= ASYNC_DRAFT_MODELS_SINCE


def schedules_ngram_ahead(engine: EngineSection) -> bool:
    """Whether the release can schedule ahead of drafts by n-grams."""
    return version_key(engine.version) >= ASYNC_NGRAM_SINCE


def release_of(engine: EngineSection) -> Release:
    """The release that the section describes, with its rules set as `rules` says."""
    return release(engine.version).with_rules(**engine.rules)


def changed_rules(engine: EngineSection) -> dict[str, bool]:
    """The rules of the section that are not as in its release."""
    named = release(engine.version)
    return {name: value for name, value in engine.rules.items() if rule_value(named, name) != value}


def mirrored(engine: EngineSection) -> str:
    """What every result says it mirrors, such as `vLLM v0.16.0 with 1 rule changed`, or what was run."""
    if engine.scheduler == "vllm":
        return f"vLLM v{engine.version} itself"
    changed = len(changed_rules(engine))
    but = f" with {changed} rule{'s' if changed > 1 else ''} changed" if changed else ""
    return f"vLLM v{engine.version}{but}"


def release_notes(engine: EngineSection) -> list[str]:
    """What is not exact about the release, and which of its rules are set otherwise."""
    named = release(engine.version)
    notes = [named.note] if named.note else []
    if changed := changed_rules(engine):
        listed = ", ".join(f"{name} {'on' if value else 'off'}" for name, value in changed.items())
        notes.append(f"rules set otherwise than in vLLM {engine.version}: {listed}")
    return notes


def switch_notes(engine: EngineSection) -> list[str]:
    """Switches that are on though the release did not have them yet."""
    early = [
        f"{name} (since {first})"
        for name, first in EVERYWHERE.items()
        if getattr(engine, name) and not knows(engine.version, name)
    ]
    return [f"vLLM {engine.version} has no {', no '.join(early)}: this run adds it"] if early else []
