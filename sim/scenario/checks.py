"""What a scenario must satisfy beyond its single fields: limits that go together.

Also where the engine's open fields (null) get the values that vLLM would give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import cost_models
from sim.errors import Fault, InputError
from sim.scenario.engine import EngineSection
from sim.scenario.external_cache import external_cache_faults
from sim.scenario.policies import policy_faults, resolved_policies
from sim.scenario.rules import release_of
from sim.scenario.speculative import schedules_ahead_by_default, speculative_faults
from sim.scenario.switches import resolved_switches, switch_faults
from sim.scenario.workload_checks import workload_faults

if TYPE_CHECKING:
    from sim.scenario.scenario import Scenario


def scenario_faults(scenario: Scenario) -> list[Fault]:
    """Every fault that takes more than one field, or the catalogues, to see."""
    faults = [
        *_time_faults(scenario),
        *switch_faults(scenario),
        *speculative_faults(scenario),
        *external_cache_faults(scenario),
        *workload_faults(scenario),
    ]
    try:
        engine = resolved_engine(scenario)
        return [*faults, *_limit_faults(scenario, engine), *policy_faults(scenario, engine)]
    except InputError as error:
        return [*faults, *error.faults]


def resolved_engine(scenario: Scenario) -> EngineSection:
    """The engine section with every default of this version and GPU written out.

    Only `num_gpu_blocks_override` may stay null. `InputError` if the model's context length is not known.
    """
    engine = scenario.engine
    defaults = cost_models.engine_defaults(engine.version, scenario.gpu, engine.entry_point)
    max_model_len = engine.max_model_len or cost_models.model(scenario.model).model.max_model_len
    if max_model_len is None:
        message = f"the context length of {scenario.model} is not known; give one"
        raise InputError([scenario.fault("engine.max_model_len", message)])
    budget = engine.max_num_batched_tokens
    if budget is None:
        # without chunked prefill a default budget grows until the longest prompt fits into one step
        budget = max(defaults.max_num_batched_tokens, 0 if engine.enable_chunked_prefill else max_model_len)
    filled: dict[str, object] = {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(defaults.max_num_seqs, budget),  # a default never exceeds the budget
        "gpu_memory_utilization": defaults.gpu_memory_utilization,
        "reserve_full_prompt": release_of(engine).defaults.reserve_full_prompt,
        "async_scheduling": defaults.async_scheduling and schedules_ahead_by_default(engine),
    }
    given = {name for name in filled if getattr(engine, name) is not None}
    filled = {name: value for name, value in filled.items() if name not in given}
    engine = engine.model_copy(update=filled | resolved_policies(engine, scenario.gpu))
    return engine.model_copy(update=resolved_switches(engine))


def _time_faults(scenario: Scenario) -> Iterator[Fault]:
    if scenario.horizon_s is not None and scenario.warmup_s >= scenario.horizon_s:
        yield scenario.fault("warmup_s", f"must end before horizon_s {scenario.horizon_s:g}")


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
