"""The real scheduler: takes the decisions of a vLLM v1 engine, step by step, and knows neither time nor
model.

Start reading at `scheduler.scheduler` (how a step is planned), `scheduler.update` (what its output does) and
`scheduler.kv_cache.interface` (where the blocks come from).
"""

from scheduler.cohort import Forecast
from scheduler.config import GroupKind, KVCacheConfig, KVGroupSpec, SchedulerConfig, SpeculativeConfig
from scheduler.connector import ExternalMatch, KVConnector, KVReport
from scheduler.engine_core import EngineCore, Sampler
from scheduler.errors import InvariantError
from scheduler.output import EngineCoreOutputs, SchedulerOutput, SteadySteps, StepRun
from scheduler.policies import VictimPolicy, WaitingOrder
from scheduler.request import EOS_TOKEN_ID, FinishReason, Request, RequestStatus
from scheduler.streaming import SessionInput

__all__ = [
    "EOS_TOKEN_ID",
    "EngineCore",
    "EngineCoreOutputs",
    "ExternalMatch",
    "FinishReason",
    "Forecast",
    "GroupKind",
    "InvariantError",
    "KVCacheConfig",
    "KVConnector",
    "KVGroupSpec",
    "KVReport",
    "Request",
    "RequestStatus",
    "Sampler",
    "SchedulerConfig",
    "SchedulerOutput",
    "SessionInput",
    "SpeculativeConfig",
    "SteadySteps",
    "StepRun",
    "VictimPolicy",
    "WaitingOrder",
]
