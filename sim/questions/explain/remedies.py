"""Remedies, each simulated again: the same requests under the same seed, one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine_setup import engine_setup
from sim.errors import InputError
from sim.jobs.points import Point, Progress, run_points
from sim.jobs.store import Samples
from sim.questions.explain.candidates import Candidate
from sim.scenario import Scenario, load_scenario
from sim.values import Floats, Json

COLUMNS = ("arrival_s", "prompt_tokens", "ttft_s", "e2e_s", "status")
ITL_PERCENTILES = (50, 90, 95, 99)
"""Those that a summary has; of TTFT and E2E any can be worked out."""
NO_EFFECT = 0.01
"""Relative changes below this are called none: one run cannot tell them from chance."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a scenario was read from, so that it can be read again with changes."""

    path: str
    overrides: tuple[str, ...] = ()

    def load(self, *more: str) -> Scenario:
        """The scenario with further overrides; `InputError` if they make none."""
        return load_scenario(self.path, (*self.overrides, *more))


@dataclass(frozen=True, slots=True)
class Effect:
    """What a run showed: latency percentiles in s by metric, and the rest by count, rate or share."""

    latency_s: dict[str, float | None]
    num_preemptions: int
    recomputed_share: float
    goodput_per_s: float | None
    throughput_per_s: float
    num_gpus: int
    num_finished: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change and what came of it; `error` if nothing did. `classes`: see `by_prompt_length`."""

    label: str
    overrides: tuple[str, ...]
    effect: Effect | None
    error: str | None = None
    classes: tuple[tuple[float, float, int], ...] = ()


def try_remedies(
    source: Source,
    baseline: Scenario,
    proposals: Sequence[Candidate],
    percentile: float,
    *,
    edges: Sequence[int] = (),
    workers: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    allow_plugins: bool = False,
) -> list[Remedy]:
    """Simulate every proposal; one that cannot be made says why in its `error`. `edges`: see
    `by_prompt_length`.
    """
    remedies: dict[str, Remedy] = {}
    points: list[Point] = []
    for candidate in proposals:
        try:
            scenario = _scenario(source, baseline, candidate, allow_plugins=allow_plugins)
        except InputError as error:
            text = "; ".join(fault.message for fault in error.faults)
            remedies[candidate.label] = Remedy(candidate.label, candidate.overrides, None, text)
        else:
            points.append(Point(scenario, {"remedy": candidate.label}))
    outcomes = run_points(
        points, columns=COLUMNS, workers=workers, on_progress=on_progress, allow_plugins=allow_plugins
    )
    made = {str(outcome.point.label["remedy"]): outcome for outcome in outcomes}
    for candidate in proposals:
        if candidate.label in made:
            outcome = made[candidate.label]
            effect, classes = None, None
            if outcome.summary is not None and outcome.samples is not None:
                run = Run(outcome.summary, outcome.samples, outcome.point.scenario.warmup_s)
                effect, classes = effect_of(run, percentile), by_prompt_length(run, percentile, edges)
            remedies[candidate.label] = Remedy(
                candidate.label, candidate.overrides, effect, outcome.error, classes or ()
            )
    return [remedies[candidate.label] for candidate in proposals]


def _scenario(source: Source, baseline: Scenario, candidate: Candidate, *, allow_plugins: bool) -> Scenario:
    """The scenario with the change.

    A number of KV blocks that was given is scaled as the memory plan's own number would change.
    """
    pinned = baseline.engine.num_gpu_blocks_override
    more: tuple[str, ...] = ()
    if pinned is not None:
        free = "engine.num_gpu_blocks_override=null"
        before = engine_setup(source.load(free), allow_plugins=allow_plugins).num_gpu_blocks
        changed = source.load(*candidate.overrides, free)
        after = engine_setup(changed, allow_plugins=allow_plugins).num_gpu_blocks
        more = (f"engine.num_gpu_blocks_override={max(round(pinned * after / before), 2)}",)
    scenario = source.load(*candidate.overrides, *more)
    engine_setup(scenario, allow_plugins=allow_plugins)
    return scenario


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run as far as effects go: its summary, and by name the `COLUMNS` of its requests."""

    summary: Mapping[str, Json]
    samples: Samples
    warmup_s: float

    def column(self, name: str) -> Floats:
        """The values of measured requests that finished."""
        late = np.asarray(self.samples["arrival_s"], dtype=np.float64) >= self.warmup_s
        chosen = late & (self.samples["status"] == "finished")
        values: Floats = np.asarray(self.samples[name], dtype=np.float64)[chosen]
        return values


def effect_of(run: Run, percentile: float) -> Effect:
    """What a run showed."""
    summary = run.summary
    latency: dict[str, float | None] = {
        "ttft": _percentile(run.column("ttft_s"), percentile),
        "itl": _itl(summary, percentile),
        "e2el": _percentile(run.column("e2e_s"), percentile),
    }
    goodput = summary["request_goodput"]
    return Effect(
        latency,
        int(_number(summary["num_preemptions"])),
        _number(summary["recomputed_token_share"]),
        None if goodput is None else _number(goodput),
        _number(summary["request_throughput"]),
        int(_number(summary["num_gpus"])),
        int(_number(summary["completed"])),
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


def by_prompt_length(
    run: Run, percentile: float, edges: Sequence[int]
) -> tuple[tuple[float, float, int], ...]:
    """TTFT of requests by the length of their prompt: median, percentile (s, NaN if none) and how many.

    A class reaches from one edge to below the next; the last has no end.
    """
    prompts, ttft_s = run.column("prompt_tokens"), run.column("ttft_s")
    number = np.searchsorted(np.asarray(edges), prompts, side="right") - 1
    found = []
    for i in range(len(edges)):
        own = ttft_s[number == i]
        both = np.percentile(own, [50, percentile]).tolist() if len(own) else [float("nan")] * 2
        found.append((both[0], both[1], len(own)))
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
