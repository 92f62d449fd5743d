"""From a measured run to the scenario of its engine, and the list of what had to be assumed on the way.

Everything the row states is taken from it. What it leaves blank is what that release of vLLM would have
chosen on that GPU; where even the release is unknown, or is one whose scheduler is not mirrored, the nearest
is taken and said so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models import CostModelError, engine_defaults, model
from cost_models.engines import version_key
from sim.errors import InputError
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.traffic import CannotRunError, Traffic
from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data

__all__ = ["Setup", "build_setup", "engine_release"]

#: Taken where a V1 engine's release is unknown or is no release at all.
NEWEST_RELEASE = "0.33.0"
#: Taken where all that is known is that the engine is of the generation before V1.
LAST_V0_RELEASE = "0.7.3"
#: From here on `vllm bench serve` sends no temperature, and the model's own sampling settings hold.
LAST_GREEDY_RELEASE = (0, 12)
#: Clients that read the engine's own clock.
ENGINE_SIDE = ("in_process", "server_metrics")


@dataclass(frozen=True)
class Setup:
    """An engine to simulate: its scenario (the workload section is only nominal) and what was assumed.

    `engine_side`: the client reads the engine's own clock, and sees neither HTTP nor the tokenizer before it.
    """

    scenario: Scenario
    assumptions: tuple[str, ...]
    engine_side: bool = False


def engine_release(run: MeasuredRun) -> tuple[str, str | None]:
    """The release `X.Y.Z` whose rules a run gets, and the assumption in that, if any."""
    version = run.engine_version or ""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match:
        release = f"{match[1]}.{match[2]}.{match[3] or 0}"
        plain = re.fullmatch(r"v?\d+\.\d+(\.\d+)*", version) is not None
        return release, None if plain else f"engine_version {version} as {release}"
    release = LAST_V0_RELEASE if run.engine_gen == "V0" else NEWEST_RELEASE
    return release, f"engine_version {version or 'unknown'} as {release}"


def build_setup(run: MeasuredRun, traffic: Traffic) -> Setup:
    """The scenario of the engine that served `run`. CannotRunError says what it lacks or is not simulated."""
    for name, value in (("model", run.model), ("gpu", run.gpu)):
        if value is None:
            raise CannotRunError(f"{name} is unknown")
    if run.engine != "vllm":
        raise CannotRunError(f"engine {run.engine} is not mirrored")
    if run.speculative is not None:
        raise CannotRunError(f"speculative decoding ({run.speculative}) is not simulated here")
    release, assumed_release = engine_release(run)
    assumptions = list(traffic.assumptions) + ([assumed_release] if assumed_release else [])
    if run.engine_gen == "V0":
        assumptions.append("V1 scheduling rules for a V0 engine")
    if run.chunked_prefill is False:
        assumptions.append("chunked prefill off: a prompt waits until it fits a step whole")
    if run.dp > 1:
        assumptions.append(f"{run.dp} data-parallel ranks as replicas behind a round-robin router")
    block_size = run.block_size or 16
    engine: dict[str, Data] = {
        "version": release,
        "tensor_parallel_size": run.tp,
        "pipeline_parallel_size": run.pp,
        "block_size": block_size,
        "kv_cache_dtype": run.kv_dtype,
        "max_model_len": run.max_model_len or _needed_context(run, traffic, assumptions),
        "gpu_memory_utilization": run.gpu_memory_utilization,
        "enable_prefix_caching": run.prefix_caching,
        "enable_chunked_prefill": run.chunked_prefill,
        "async_scheduling": run.async_scheduling,
        **_limits(run, release, assumptions),
    }
    if run.num_kv_tokens is not None:
        engine["num_gpu_blocks_override"] = max(2, run.num_kv_tokens // run.dp // block_size)
    else:
        assumptions.append("KV blocks from the memory plan")
    data: dict[str, Data] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", run.run_id).strip("-._")[:100] or "run",
        "description": f"measured run {run.run_id} of {run.source}",
        "model": run.model,
        "weight_dtype": run.weight_dtype,
        "gpu": run.gpu,
        "cluster": {"replicas": run.dp},
        "engine": engine,
        "workload": _nominal_workload(traffic) | {"temperature": 0.0 if _greedy(run, release) else None},
        "warmup_s": float(traffic.arrival_s[traffic.num_warmup]) if traffic.num_warmup else 0.0,
    }
    try:
        return Setup(
            scenario_from_data(data),
            tuple(assumptions),
            engine_side=run.client in ENGINE_SIDE,
        )
    except InputError as error:
        raise CannotRunError("; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)) from None


def _greedy(run: MeasuredRun, release: str) -> bool:
    """vLLM's own load generator asked for temperature 0 unless told otherwise, and later leaves it."""
    return run.client == "python" and version_key(release) < LAST_GREEDY_RELEASE


def _limits(run: MeasuredRun, release: str, assumptions: list[str]) -> dict[str, Data]:
    """Sequences and tokens of a step: the row's, or the release's for the entry point the client used."""
    entry_point = "llm" if run.client == "in_process" else "server"
    limits = {
        "max_num_seqs": run.max_num_seqs,
        "max_num_batched_tokens": run.max_num_batched_tokens,
    }
    if None in limits.values():
        try:
            defaults = engine_defaults(release, str(run.gpu), entry_point)
        except CostModelError as error:
            raise CannotRunError(str(error)) from None
        for name, value in limits.items():
            if value is None:
                limits[name] = getattr(defaults, name)
                assumptions.append(f"{name} {limits[name]}, the default of {release}")
    return dict(limits)


def _needed_context(run: MeasuredRun, traffic: Traffic, assumptions: list[str]) -> int | None:
    """None means the model's own context length; where that is not known, the longest request's."""
    try:
        if model(str(run.model)).model.max_model_len is not None:
            return None
    except CostModelError as error:
        raise CannotRunError(str(error)) from None
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    assumptions.append("max_model_len as long as the longest request takes: the model's own is not known")
    return longest


def _nominal_workload(traffic: Traffic) -> dict[str, Data]:
    """A workload section that the scenario must have; the requests themselves come from the traffic."""
    return {
        "kind": "burst",
        "num_requests": len(traffic.arrival_s),
        "max_concurrency": traffic.max_concurrency,
        "lengths": {
            "kind": "fixed",
            "prompt_tokens": int(traffic.prompt_tokens[0]),
            "output_tokens": int(traffic.output_tokens[0]),
        },
    }
