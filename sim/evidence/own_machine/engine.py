"""Which engine was recorded, as a scenario: what the recording says of itself goes before what is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cost_models
from cost_models import UnknownNameError
from sim.errors import Fault, InputError
from sim.recordings import Recording
from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data, Places, apply_overrides

_ANY_WORKLOAD: Data = {
    "kind": "closed_loop",
    "max_concurrency": 1,
    "num_requests": 1,
    "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
}

_SETTINGS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "async_sched": "async_scheduling",
    "num_blocks": "num_gpu_blocks_override",
}
"""What times or memory depend on: the words of a recording's configuration, and those of a scenario."""
_KV_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


def recorded_engine(
    recordings: Sequence[Recording],
    *,
    scenario: Scenario | None = None,
    model: str | None = None,
    gpu: str | None = None,
    weight_dtype: str | None = None,
    calibration: str | None = None,
    overrides: Sequence[str] = (),
) -> Scenario:
    """The engine of these recordings, all of one engine or of equal ones.

    `scenario` has what the recording does not say, such as the drafter's model or whether requests are
    sampled with temperature 0; its workload plays no part. InputError where recordings are of different
    engines, or of another model or GPU than is named, with all faults at once.
    """
    first = recordings[0]
    faults = list(_differences(recordings))
    if scenario is not None:
        model, gpu = model or scenario.model, gpu or scenario.gpu
    model, model_faults = _named("model", first.settings.model, model, str(first.path))
    gpu, gpu_faults = _named("gpu", first.settings.gpu, gpu, str(first.path))
    faults += [*model_faults, *gpu_faults, *_unknown_drafter(first, scenario)]
    if faults:
        raise InputError(faults)
    data: dict[str, Data] = {"name": "recorded", "workload": _ANY_WORKLOAD}
    if scenario is not None:
        data = scenario.as_data()
    data |= {"model": model, "gpu": gpu}
    weight_dtype = weight_dtype or _known_weights(first.settings.quantization)
    given: dict[str, Data] = {"weight_dtype": weight_dtype, "calibration": calibration}
    data |= {name: value for name, value in given.items() if value is not None}
    data["engine"] = _engine(first, data.get("engine"))
    changed, override_faults = apply_overrides(data, Places(), overrides)
    if override_faults:
        raise InputError(override_faults)
    return scenario_from_data(changed)


def _engine(recording: Recording, named: Data) -> dict[str, Data]:
    """The engine section: what the recording says, and for the rest what is named."""
    settings, config = recording.settings, recording.settings.config
    engine: dict[str, Data] = dict(named) if isinstance(named, dict) else {}
    for word, name in _SETTINGS.items():
        value = config.get(word)
        if isinstance(value, bool | int):
            engine[name] = value
    if settings.kv_cache_dtype in _KV_DTYPES:
        engine["kv_cache_dtype"] = settings.kv_cache_dtype
    engine["enforce_eager"] = settings.enforce_eager
    engine["version"] = recording.release
    engine["tensor_parallel_size"] = settings.tensor_parallel
    engine["pipeline_parallel_size"] = settings.pipeline_parallel
    spec = config.get("spec")
    if isinstance(spec, dict) and engine.get("speculative_config") is None:
        drafts = spec.get("k")
        assert isinstance(drafts, int)
        engine["speculative_config"] = {
            "method": str(spec.get("kind")),
            "num_speculative_tokens": drafts,
            "acceptance": 0.5,
        }
    return engine


def _unknown_drafter(recording: Recording, scenario: Scenario | None) -> Iterator[Fault]:
    spec = recording.settings.config.get("spec")
    if not isinstance(spec, dict) or (scenario is not None and scenario.engine.speculative_config):
        return
    kind = str(spec.get("kind"))
    if kind == "draft_model":
        message = "drafts come from a model that the recording does not name: name it with --scenario"
        yield Fault(str(recording.path), None, message)
    elif kind not in ("ngram", "eagle"):
        yield Fault(str(recording.path), None, f"drafts of kind {kind} have no cost model")


def _differences(recordings: Sequence[Recording]) -> Iterator[Fault]:
    """What recordings of equal engines have alike."""
    first = recordings[0]
    for other in recordings[1:]:
        facts: list[tuple[str, object, object]] = [
            ("GPU", first.settings.gpu, other.settings.gpu),
            ("model", first.settings.model, other.settings.model),
            ("vLLM", first.release, other.release),
            ("tensor parallel size", first.settings.tensor_parallel, other.settings.tensor_parallel),
            ("pipeline parallel size", first.settings.pipeline_parallel, other.settings.pipeline_parallel),
        ]
        words = (*_SETTINGS, "spec")
        facts += [(w, first.settings.config.get(w), other.settings.config.get(w)) for w in words]
        unlike = [f"{name} {theirs} and not {ours}" for name, ours, theirs in facts if ours != theirs]
        if unlike:
            message = f"is of another engine than {first.path}: {', '.join(unlike)}; calibrate each by itself"
            yield Fault(str(other.path), None, message)


def _named(kind: str, recorded: str | None, named: str | None, where: str) -> tuple[str, list[Fault]]:
    """The model or GPU to take: that which was named, if the recording does not say otherwise."""
    known = _known(kind, recorded)
    if named is None:
        if known is not None and recorded is not None:
            return recorded, []
        said = f"says {kind} {recorded!r}, which is not known" if recorded else f"does not say its {kind}"
        return "", [Fault(where, None, f"{said}; name it with --{kind}")]
    try:
        wanted = _look_up(kind, named)
    except (cost_models.CostModelError, OSError) as error:
        return named, [Fault(f"--{kind}", None, str(error))]
    if known is not None and wanted != known:
        return named, [Fault(where, None, f"is a recording of {kind} {recorded}, not of {named}")]
    return named, []


def _known(kind: str, name: str | None) -> str | None:
    """What the catalogues call it, if they know it."""
    try:
        return None if name is None else _look_up(kind, name)
    except cost_models.CostModelError:
        return None


def _known_weights(quantization: str | None) -> str | None:
    """The recorded quantization, if it names the weights' type; else the model's name has to."""
    try:
        return None if quantization is None else cost_models.weight_dtype(quantization).name
    except UnknownNameError:
        return None


def _look_up(kind: str, name: str) -> str:
    return cost_models.gpu(name).name if kind == "gpu" else cost_models.model(name).model.name
