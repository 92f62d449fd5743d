"""cost_models: how long a step takes and how many KV blocks fit.

Knows GPUs, models and kernels; knows no scheduler, no clock and no scenario. A `StepShape` goes in, seconds
come out (`StepCostModel`); a memory budget comes out of `memory_plan`. Both are made from one `Deployment`: a
model, GPUs and an engine's settings.
"""

from importlib import import_module

from cost_models.calibration import Calibration, calibration, calibration_for, load_calibration
from cost_models.deployment import Deployment
from cost_models.engines import (
    EngineDefaults,
    EngineProfile,
    ServingFacts,
    client_overhead_s,
    cudagraph_capture_sizes,
    default_block_size,
    engine_defaults,
    engine_profile,
    serving_facts,
)
from cost_models.errors import CalibrationError, CostModelError, DoesNotFitError, SpecError, UnknownNameError
from cost_models.gpus import Gpu, gpu, gpu_names
from cost_models.hf_config import model_from_hf_config
from cost_models.machine import Machine
from cost_models.memory import MemoryPlan, memory_plan
from cost_models.models import Model, Parallelism
from cost_models.named_models import NamedModel, model, model_names
from cost_models.step_cost import BOUNDS, DecodeRun, StepCost, StepCostModel, StepShape
from cost_models.weights import weight_dtype

__all__ = [
    "BOUNDS",
    "Calibration",
    "CalibrationError",
    "CostModelError",
    "DecodeRun",
    "Deployment",
    "DoesNotFitError",
    "EngineDefaults",
    "EngineProfile",
    "Gpu",
    "Machine",
    "MemoryPlan",
    "Model",
    "NamedModel",
    "Parallelism",
    "ServingFacts",
    "SpecError",
    "StepCost",
    "StepCostModel",
    "StepShape",
    "UnknownNameError",
    "calibration",
    "calibration_for",
    "client_overhead_s",
    "cudagraph_capture_sizes",
    "default_block_size",
    "engine_defaults",
    "engine_profile",
    "gpu",
    "gpu_names",
    "load_calibration",
    "memory_plan",
    "model",
    "model_from_hf_config",
    "model_names",
    "serving_facts",
    "weight_dtype",
]


def __getattr__(name: str) -> object:
    """`cost_models.fit` loads when it is asked for: it needs scipy, which a simulation does not."""
    if name == "fit":
        return import_module(".fit", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
