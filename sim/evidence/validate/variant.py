"""A cost model otherwise than shipped: a term turned off to see what it buys, a constant that a fit tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models import (
    Calibration,
    EngineProfile,
    Parallelism,
    ServingFacts,
    StepCostModel,
    calibration,
    engine_profile,
    gpu,
    model,
    serving_facts,
)
from sim.engine_setup import EngineSetup
from sim.scenario import Scenario

__all__ = ["SHIPPED", "Variant"]


@dataclass(frozen=True)
class Variant:
    """What to change of the cost model of any engine; functions of a module, or partials of them, so that
    processes can be handed one.

    greedy: as if every request asked for temperature 0. padding: False runs every token count as a CUDA graph
    of its own size.
    """

    name: str = "full model"
    calibration: Callable[[Calibration], Calibration] | None = None
    facts: Callable[[ServingFacts], ServingFacts] | None = None
    profile: Callable[[EngineProfile], EngineProfile] | None = None
    greedy: bool = False
    padding: bool = True

    def apply(self, setup: EngineSetup, scenario: Scenario) -> EngineSetup:
        """The scenario's engine with the costs of this variant."""
        if self == SHIPPED:
            return setup
        shipped = engine_profile(scenario.engine.version)
        profile = self.profile(shipped) if self.profile else shipped
        replica = replace(
            setup.replica,
            timer=self._timer(setup, scenario, profile),
            front_end_s=profile.frontend_s,
            front_end_stream_s=profile.frontend_stream_s,
        )
        return replace(setup, replica=replica)

    def _timer(self, setup: EngineSetup, scenario: Scenario, profile: EngineProfile) -> StepCostModel:
        engine, named, part = setup.engine, model(scenario.model), gpu(scenario.gpu)
        weights = scenario.weight_dtype if scenario.weight_dtype != "auto" else named.weight_dtype or "auto"
        fitted, facts = calibration(part.name), serving_facts(part)
        if not self.padding:  # without graphs there is no padding; what launching would cost is left out
            profile = replace(profile, eager_layer_s=0.0)
        return StepCostModel.build(
            named.model,
            part,
            Parallelism(engine.tensor_parallel_size, engine.pipeline_parallel_size),
            weight_dtype=weights,
            kv_cache_dtype=engine.kv_cache_dtype,
            engine_version=engine.version,
            async_scheduling=engine.async_scheduling,
            enforce_eager=engine.enforce_eager or not self.padding,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            greedy=self.greedy or scenario.workload.temperature == 0,
            fitted=self.calibration(fitted) if self.calibration else fitted,
            facts=self.facts(facts) if self.facts else facts,
            profile=profile,
        )


#: The model as it is.
SHIPPED = Variant()
