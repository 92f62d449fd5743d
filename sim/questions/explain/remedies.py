"""Remedies, each simulated again: the same requests under the same seed, one change at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.errors import InputError, input_error
from sim.jobs.options import RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.jobs.store import Samples
from sim.jobs.worker import request_samples
from sim.questions.explain.candidates import Candidate
from sim.questions.explain.observe import Observed
from sim.scenario import Scenario, load_scenario
from sim.setup import engine_setup
from sim.values import Floats, Json

ITL_PERCENTILES = (50, 90, 95, 99)
"""Those that a summary has; of TTFT and E2E any can be worked out."""
NO_EFFECT = 0.01
"""Relative changes below this are called none: one run cannot tell them from chance."""
_COLUMNS = ("arrival_s", "prompt_tokens", "ttft_s", "e2e_s", "status")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a scenario was read from, so that it can be read again with changes; `run` is the folder of the
    run that it belongs to, if one was named.
    """

    scenario: str | Scenario
    overrides: tuple[str, ...] = ()
    run: Path | None = None

    @classmethod
    def of(cls, name: str | Path | Scenario, overrides: tuple[str, ...] = ()) -> Source:
        """A scenario, loaded or by name or path, or the one in the folder of a run.

        Raises `InputError` for a folder that holds no run, and for overrides of a run that has been made.
        """
        if isinstance(name, Scenario):
            return cls(name, overrides)
        folder = Path(name)
        if not folder.is_dir():
            return cls(str(name), overrides)
        scenario = folder / "scenario.resolved.yaml"
        if not scenario.is_file():
            raise input_error("is no run folder: scenario.resolved.yaml missing", where=str(name))
        if overrides:
            raise input_error("changes a scenario, not a run that has been made", where="--set")
        return cls(str(scenario), run=folder)

    def load(self, *more: str) -> Scenario:
        """The scenario with further overrides; `InputError` if they make none."""
        return load_scenario(self.scenario, (*self.overrides, *more))


class PromptClass(NamedTuple):
    """TTFT of the requests whose prompts are about as long: median, percentile (s, NaN if none), how many."""

    median_s: float
    percentile_s: float
    num_requests: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a run showed: latency percentiles in s by metric, and the rest by count, rate or share.

    `by_prompt`: TTFT by classes of prompt length, if the workload has several.
    """

    latency_s: dict[str, float | None]
    num_preemptions: int
    recomputed_share: float
    goodput_per_s: float | None
    throughput_per_s: float
    num_gpus: int
    num_finished: int
    by_prompt: tuple[PromptClass, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change and what came of it; `error` says why nothing did, or what ended the run."""

    change: Candidate
    effect: Effect | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """What the run showed as it is, and what came of each change; `remedies` is None where none were tried.

    `class_edges`: lower edges of the classes of prompt length, tokens; empty if prompts are of one kind.
    """

    as_it_is: Effect
    class_edges: tuple[int, ...] = ()
    remedies: tuple[Remedy, ...] | None = None


def try_remedies(
    source: Source,
    baseline: Scenario,
    proposals: Sequence[Candidate],
    percentile: float,
    class_edges: Sequence[int] = (),
    options: RunOptions | None = None,
) -> list[Remedy]:
    """Simulate every proposal; one that cannot be made says why in its `error`."""
    options = options or RunOptions()
    made = [_changed(source, baseline, change, allow_plugins=options.allow_plugins) for change in proposals]
    points = [Point(scenario) for scenario in made if isinstance(scenario, Scenario)]
    outcomes = iter(run_points(points, columns=_COLUMNS, options=options))
    return [
        _judged(change, next(outcomes), percentile, class_edges)
        if isinstance(scenario, Scenario)
        else Remedy(change, None, scenario)
        for change, scenario in zip(proposals, made, strict=True)
    ]


def _changed(source: Source, baseline: Scenario, change: Candidate, *, allow_plugins: bool) -> Scenario | str:
    """The scenario with the change, or why there is none.

    A number of KV blocks that was given is scaled as the memory plan's own number would change.
    """
    pinned = baseline.engine.num_gpu_blocks_override
    more: tuple[str, ...] = ()
    try:
        if pinned is not None:
            free = "engine.num_gpu_blocks_override=null"
            before = engine_setup(source.load(free), allow_plugins=allow_plugins).num_gpu_blocks
            changed = source.load(*change.overrides, free)
            after = engine_setup(changed, allow_plugins=allow_plugins).num_gpu_blocks
            more = (f"engine.num_gpu_blocks_override={max(round(pinned * after / before), 2)}",)
        scenario = source.load(*change.overrides, *more)
        engine_setup(scenario, allow_plugins=allow_plugins)
    except InputError as error:
        return "; ".join(fault.message for fault in error.faults)
    return scenario


def _judged(change: Candidate, outcome: Outcome, percentile: float, class_edges: Sequence[int]) -> Remedy:
    if outcome.summary is None or outcome.samples is None:
        return Remedy(change, None, outcome.error)
    warmup_s = outcome.point.scenario.warmup_s
    effect = _effect(outcome.summary, outcome.samples, warmup_s, percentile, class_edges)
    return Remedy(change, effect, outcome.error)


def effects_of(observed: Observed, percentile: float, class_edges: Sequence[int] | None = None) -> Effects:
    """What the observed run showed, in the form in which remedies are judged.

    `class_edges` are by default those of the workload.
    """
    result = observed.result
    if class_edges is None:
        prompts = result.times.prompt_tokens[result.times.done].astype(np.float64)
        class_edges = prompt_edges(prompts, result.setup.replica.scheduler.max_num_batched_tokens)
    samples = request_samples(result, _COLUMNS)
    effect = _effect(result.summary, samples, result.scenario.warmup_s, percentile, class_edges)
    return Effects(effect, tuple(class_edges))


def _effect(
    summary: Mapping[str, Json],
    samples: Samples,
    warmup_s: float,
    percentile: float,
    class_edges: Sequence[int],
) -> Effect:
    """What a run showed of the measured requests that finished."""
    measured = np.asarray(samples["arrival_s"], dtype=np.float64) >= warmup_s
    chosen = measured & (samples["status"] == "finished")
    prompts, ttft_s, e2e_s = (
        np.asarray(samples[name], dtype=np.float64)[chosen] for name in ("prompt_tokens", "ttft_s", "e2e_s")
    )
    goodput = summary["request_goodput"]
    return Effect(
        {
            "ttft": _percentile(ttft_s, percentile),
            "itl": _itl(summary, percentile),
            "e2e": _percentile(e2e_s, percentile),
        },
        int(_number(summary["num_preemptions"])),
        _number(summary["recomputed_token_share"]),
        None if goodput is None else _number(goodput),
        _number(summary["request_throughput"]),
        int(_number(summary["num_gpus"])),
        int(_number(summary["completed"])),
        _by_prompt_length(prompts, ttft_s, percentile, class_edges),
    )


def _itl(summary: Mapping[str, Json], percentile: float) -> float | None:
    """As the summary has it; of other percentiles than its own, nothing."""
    key = "median" if percentile == 50 else f"p{percentile:g}"
    value = summary.get(f"{key}_itl_ms")
    return _number(value) / 1000.0 if isinstance(value, (int, float)) else None


def _number(value: Json) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _percentile(values: Floats, percentile: float) -> float | None:
    return float(np.percentile(values, percentile)) if len(values) else None


def _by_prompt_length(
    prompt_tokens: Floats, ttft_s: Floats, percentile: float, class_edges: Sequence[int]
) -> tuple[PromptClass, ...]:
    """TTFT by the length of the prompt. A class reaches from one edge to below the next; the last has no
    end.
    """
    number = np.searchsorted(np.asarray(class_edges), prompt_tokens, side="right") - 1
    found = []
    for i in range(len(class_edges)):
        own = ttft_s[number == i]
        both = np.percentile(own, [50, percentile]).tolist() if len(own) else [float("nan")] * 2
        found.append(PromptClass(both[0], both[1], len(own)))
    return tuple(found)


def prompt_edges(prompt_tokens: Floats, token_budget: int) -> list[int]:
    """Lower edges of the classes of prompt length that a workload has.

    None if all prompts are of one kind, or none is longer than a step's budget.
    """
    if not len(prompt_tokens) or prompt_tokens.max() <= max(8 * np.median(prompt_tokens), token_budget):
        return []
    marks = (0, 1_000, 4_000, 16_000, 64_000)
    used = np.unique(np.searchsorted(marks, prompt_tokens, side="right") - 1)
    return [marks[i] for i in used]


def ranked(remedies: Sequence[Remedy], metric: str) -> list[Remedy]:
    """The best first; those that could not be run last."""

    def key(remedy: Remedy) -> tuple[bool, float]:
        value = None if remedy.effect is None else remedy.effect.latency_s[metric]
        return value is None or bool(remedy.error), value or 0.0

    return sorted(remedies, key=key)


def verdict(effect: Effect, baseline: Effect, metric: str) -> str:
    """One word on what a remedy does to the metric in question."""
    now, before = effect.latency_s[metric], baseline.latency_s[metric]
    if now is None or before is None or effect.num_finished < baseline.num_finished:
        same = effect.num_finished == baseline.num_finished
        return "nobody finishes" if same else f"{effect.num_finished:,} finish, not {baseline.num_finished:,}"
    change = now / before - 1.0 if before else 0.0
    if abs(change) < NO_EFFECT:
        same = all(
            _close(effect.latency_s[name], baseline.latency_s[name]) for name in baseline.latency_s
        ) and _close(effect.num_preemptions, baseline.num_preemptions)
        return "no effect" if same else "no effect here"
    digits = 1 if change < -0.985 else 0
    return f"{abs(change):.{digits}%} {'better' if change < 0 else 'WORSE'}"


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= NO_EFFECT * abs(other)
