"""From a measured run to what is simulated: the scenario of its engine, and the requests of its client.

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
from sim.evidence.validate.sent_requests import CannotRunError, SentRequests, sent_requests
from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data
from sim.setup import engine_setup
from sim.workload import Workload

__all__ = ["MappedRun", "engine_release", "map_run"]

#: Taken where a V1 engine's release is unknown or is no release at all.
NEWEST_RELEASE = "0.33.0"
#: Taken where all that is known is that the engine is of the generation before V1.
LAST_V0_RELEASE = "0.7.3"
#: From here on `vllm bench serve` sends no temperature, and the model's own sampling settings hold.
LAST_GREEDY_RELEASE = (0, 12)
#: Clients that read the engine's own clock.
ENGINE_SIDE = ("in_process", "server_metrics")


@dataclass(frozen=True)
class MappedRun:
    """A measured run as it is simulated: these requests on the engine of this scenario.

    `assumptions` says what the run left open. `sees_engine_clock`: its client reads the engine's own clock,
    and sees neither HTTP nor the tokenizer before it.
    """

    sent: SentRequests
    scenario: Scenario
    workload: Workload
    assumptions: tuple[str, ...]
    sees_engine_clock: bool


def map_run(run: MeasuredRun, limit_requests: int | None = None) -> MappedRun:
    """The scenario and the requests of a measured run, cut to its first requests if there is a limit.

    Raises CannotRunError where the run does not say enough, or says what is not simulated.
    """
    sent = sent_requests(run, limit_requests)
    assumptions = list(sent.assumptions)
    scenario = _scenario(run, sent, assumptions)
    try:
        setup = engine_setup(scenario)
    except InputError as error:
        raise CannotRunError("; ".join(map(str, error.faults))) from None
    except CostModelError as error:
        raise CannotRunError(str(error)) from None
    return MappedRun(
        sent=sent,
        scenario=scenario,
        workload=sent.workload(setup.replica.scheduler.max_model_len),
        assumptions=(*assumptions, *setup.notes),
        sees_engine_clock=run.client in ENGINE_SIDE,
    )


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


def _scenario(run: MeasuredRun, sent: SentRequests, assumptions: list[str]) -> Scenario:
    """The scenario of the engine that served the run. Its requests are those in the run's own file."""
    for name, value in (("model", run.model), ("gpu", run.gpu)):
        if value is None:
            raise CannotRunError(f"{name} is unknown")
    if run.engine != "vllm":
        raise CannotRunError(f"engine {run.engine} is not mirrored")
    if run.speculative is not None:
        raise CannotRunError(f"speculative decoding ({run.speculative}) is not simulated here")
    release, assumed_release = engine_release(run)
    if assumed_release:
        assumptions.append(assumed_release)
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
        "max_model_len": run.max_model_len or _needed_context(sent, assumptions),
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
        "name": "measured-run",
        "model": run.model,
        "weight_dtype": run.weight_dtype,
        "gpu": run.gpu,
        "cluster": {"replicas": run.dp},
        "engine": engine,
        "workload": {
            "kind": "trace",
            "path": str(run.file),
            "max_concurrency": run.max_concurrency,
            "temperature": 0.0 if _greedy(run, release) else None,
        },
        "warmup_s": sent.warmup_s,
    }
    try:
        return scenario_from_data(data)
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


def _needed_context(sent: SentRequests, assumptions: list[str]) -> int | None:
    """None means the model's own context length; where that is not known, the longest request's."""
    try:
        if model(str(sent.run.model)).model.max_model_len is not None:
            return None
    except CostModelError as error:
        raise CannotRunError(str(error)) from None
    assumptions.append("max_model_len as long as the longest request takes: the model's own is not known")
    return int((sent.prompt_tokens + sent.output_tokens).max())
