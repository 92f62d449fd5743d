"""The set's folder: scenario files and `baseline.json`, what they gave when somebody last accepted it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from sim.errors import Fault, InputError, did_you_mean, input_error, writing
from sim.evidence.regress import recorded
from sim.version import dryserve_version

FORMAT = 1
FILE = "baseline.json"
ANY, STEP_COSTS = "*", "step_costs"
DEFAULT_ALLOWED = {ANY: 1e-9, STEP_COSTS: 1e-9}
"""Relative differences that are let pass: the last bits of sums, which may differ between machines."""


class Decisions(TypedDict):
    """The scheduler's fingerprint: counts and digest of its decisions, and the digest every so many steps."""

    steps: int
    scheduled_tokens: int
    preemptions: int
    admissions: int
    digest: str
    marks: list[str]


class Dispatch(TypedDict):
    """The cluster's fingerprint: steps of each replica, tokens, and the digest of what became of requests."""

    steps: list[int]
    output_tokens: int
    digest: str


class Probe(TypedDict):
    """The fingerprints of all layers. `step_s` is the step time that stands in for the cost model's (s),
    `num_blocks` the memory plan's, `step_costs_s` by fixed step its time on GPU and host (s); `decisions` is
    None where the engine needs a cluster around it.
    """

    step_s: float
    num_blocks: int
    step_costs_s: dict[str, list[float]]
    decisions: Decisions | None
    dispatch: Dispatch


class Observation(TypedDict):
    """What is kept of a scenario: `settings` in full, `metrics` by key, the error `band`, `samples_s` of
    latencies, a `timeline`, the `workload`'s requests, and the `probe` of each layer.

    `probe_of_baseline` is that of today's layers on the baseline's inputs; it is compared and not kept.
    """

    settings: dict[str, Any]
    metrics: dict[str, float | None]
    band: Any
    samples_s: dict[str, list[float]]
    timeline: dict[str, Any]
    workload: recorded.Requests
    probe: Probe
    probe_of_baseline: NotRequired[Probe | None]


LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that is compared: its key in `summary.json`, its name, and the error band it is held to."""

    key: str
    name: str
    band: str | None = None


def _metrics() -> tuple[Metric, ...]:
    bands = {"ttft": "ttft_mean", "tpot": "tpot_mean", "e2el": "e2e_mean"}
    tails = {"ttft": "ttft_p99", "e2el": "e2e_p99"}
    found = [
        Metric("completed", "requests completed"),
        Metric("failed", "requests failed"),
        Metric("duration", "duration (s)"),
        Metric("output_throughput", "output tokens/s", "out_tput_tok_s"),
        Metric("request_goodput", "goodput (req/s)"),
        Metric("slo_attainment", "SLO attainment"),
    ]
    for key, name in LATENCIES:
        for column in ("mean", "median", "p90", "p99"):
            band = (tails if column == "p99" else bands).get(key)
            found.append(
                Metric(f"{column}_{key}_ms", f"{'p50' if column == 'median' else column} {name} (ms)", band)
            )
    return (
        *found,
        Metric("num_steps", "steps"),
        Metric("num_gpu_blocks", "KV blocks"),
        Metric("kv_usage_p50", "p50 KV usage"),
        Metric("kv_usage_p95", "p95 KV usage"),
        Metric("num_preemptions", "preemptions"),
        Metric("recomputed_token_share", "preemption tax"),
        Metric("prefix_cache_hit_rate", "prefix cache hit rate"),
        Metric("busy_share", "GPUs at work"),
    )


METRICS = _metrics()
_KEYS = ("settings", "metrics", "band", "samples_s", "timeline", "workload", "probe")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What `baseline.json` holds: by scenario what `observe` keeps, and what differences are allowed.

    `allow` maps a metric's key in `summary.json`, `*` for all others and `step_costs` to a relative
    difference.
    """

    scenarios: Mapping[str, Observation]
    version: str = ""
    allow: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_ALLOWED))

    def allowed(self, key: str) -> float:
        """The relative difference of a metric that is let pass."""
        return self.allow.get(key, self.allow.get(ANY, DEFAULT_ALLOWED[ANY]))


def scenario_files(folder: Path) -> list[Path]:
    """The scenario files of a set, by name; raises `InputError` if there are none."""
    if not folder.is_dir():
        raise input_error("is no folder of scenarios: no such folder", where=str(folder))
    files = sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    if not files:
        raise input_error("holds no scenarios (*.yaml)", where=str(folder))
    return files


def read_baseline(folder: Path) -> Baseline | None:
    """The baseline of a set; None if it has none yet. Raises `InputError` for one that cannot be used."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise input_error(f"cannot be read: {error}", where=str(path)) from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise input_error("is not JSON; take it again from version control", where=f"{path}:{line}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise input_error(
            f"must be {FORMAT}, is {found!r}: another version wrote it", where=str(path), path="format"
        )
    faults = [*_allow_faults(data.get("allow"), path), *_scenario_faults(data.get("scenarios"), path)]
    if faults:
        raise InputError(faults)
    allow = cast("dict[str, float]", data["allow"])
    return Baseline(data["scenarios"], str(data.get("dryserve_version", "")), allow)


def write_baseline(folder: Path, found: Mapping[str, Observation], before: Baseline | None) -> Path:
    """Make what was observed the new baseline; what differences are allowed stays as it was."""
    path = folder / FILE
    with writing(path):
        path.write_text(baseline_text(found, before), encoding="utf-8")
    return path


def baseline_text(found: Mapping[str, Observation], before: Baseline | None) -> str:
    """What was observed as `baseline.json` has it; what differences are allowed is as `before` has it."""
    kept = {name: {key: own.get(key) for key in _KEYS} for name, own in sorted(found.items())}
    allow = dict(before.allow if before else DEFAULT_ALLOWED)
    return _text({"format": FORMAT, "dryserve_version": dryserve_version(), "allow": allow}, kept)


def _text(head: Mapping[str, object], scenarios: Mapping[str, Mapping[str, object]]) -> str:
    """JSON with a line for each column, so that a difference in version control names what moved."""
    lines = [f"{_dump(key)}: {_dump(value)}," for key, value in head.items()]
    lines.append('"scenarios": {')
    for place, (name, own) in enumerate(scenarios.items()):
        lines.append(f"{_dump(name)}: {{")
        parts = []
        for key, value in own.items():
            if isinstance(value, dict) and key != "band":
                inner = ",\n".join(f"  {_dump(k)}: {_dump(v)}" for k, v in value.items())
                parts.append(f" {_dump(key)}: {{\n{inner}\n }}")
            else:
                parts.append(f" {_dump(key)}: {_dump(value)}")
        lines.append(",\n".join(parts))
        lines.append("}" + ("," if place + 1 < len(scenarios) else ""))
    return "{\n" + "\n".join(lines) + "\n}}\n"


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _allow_faults(allow: object, path: Path) -> Iterator[Fault]:
    if not isinstance(allow, dict):
        yield Fault(str(path), "allow", 'must map metrics to relative differences, such as {"*": 1e-9}')
        return
    keys = [metric.key for metric in METRICS] + [ANY, STEP_COSTS]
    for key, share in allow.items():
        if key not in keys:
            yield Fault(str(path), f"allow.{key}", f"is no metric{did_you_mean(key, keys)}")
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
            yield Fault(str(path), f"allow.{key}", f"must be a share of 0 or more, is {share!r}")


def _scenario_faults(scenarios: object, path: Path) -> Iterator[Fault]:
    if not isinstance(scenarios, dict):
        yield Fault(str(path), "scenarios", "must hold what each scenario gave")
        return
    for name, own in scenarios.items():
        where = f"scenarios.{name}"
        if not isinstance(own, dict) or any(
            not isinstance(own.get(key), dict) for key in _KEYS if key != "band"
        ):
            yield Fault(str(path), where, "is not whole; take it again from version control")
            continue
        missing = [key for key in Probe.__annotations__ if key not in own["probe"]]
        if missing:
            yield Fault(str(path), f"{where}.probe", f"lacks {', '.join(missing)}")
        try:
            recorded.workload_from_json(own["workload"])
        except (KeyError, TypeError, ValueError) as error:
            yield Fault(
                str(path), f"{where}.workload", f"is damaged ({error!r}); take it again from version control"
            )
