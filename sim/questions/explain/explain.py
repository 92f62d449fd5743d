"""Why a latency percentile of a run is what it is, and what would change it: the whole way, in order.

1. `observe` simulates the scenario once more under observation and books all time of every finished request
   under the parts of its latency (`ledger`, over the phases of steps in `step_phases`);
2. `find_cause` compares the slowest with the middle, part by part (`parts`), and looks at what went on around
   them (`circumstances`);
3. `candidates` proposes changes of the scenario that can matter for this cause;
4. `try_remedies` simulates each of them with the same requests and seed.

`words` and `screen` say it to people.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sim.cluster.world import Progress as RunProgress
from sim.errors import input_error
from sim.jobs.options import Progress
from sim.questions.explain.candidates import candidates, facts_of
from sim.questions.explain.cause import METRICS, Cause, find_cause
from sim.questions.explain.observe import Observed, observe
from sim.questions.explain.parts import PARTS
from sim.questions.explain.remedies import (
    ITL_PERCENTILES,
    Effect,
    Remedy,
    Source,
    baseline_effect,
    prompt_edges,
    ranked,
    try_remedies,
    verdict,
)
from sim.questions.explain.words import cause_in_words
from sim.values import Json, plain_json

SUMMARY_KEYS = {"ttft": "ttft", "itl": "itl", "e2e": "e2el"}
"""How JSON files call the metrics: as vLLM does."""
_OF_THE_RUN = (
    "mirrors",
    "dryserve_version",
    "calibration_id",
    "error_band",
    "seed",
    "loop",
    "warmup_s",
    "notes",
)


@dataclass(frozen=True)
class Explanation:
    """The cause of one percentile of one metric of one run, and what came of changes that may help.

    `baseline` is what the run itself showed, in the form of the remedies' effects. `class_edges`: lower edges
    of the classes of prompt length, tokens; empty if prompts are of one kind. `remedies` is None where none
    were simulated.
    """

    source: Source
    observed: Observed
    cause: Cause
    baseline: Effect
    class_edges: tuple[int, ...]
    remedies: tuple[Remedy, ...] | None = None

    @property
    def may_have_remedies(self) -> bool:
        """Whether anything was found that a change could help."""
        return bool(self.cause.slow.size or self.cause.preemption.count)

    def with_remedies(
        self,
        *,
        workers: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        allow_plugins: bool = False,
    ) -> Explanation:
        """The same with every change simulated that may help. What was simulated is kept and found again."""
        proposals = candidates(facts_of(self.observed, self.cause))
        remedies = try_remedies(
            self.source,
            self.observed.result.scenario,
            proposals,
            self.cause.percentile,
            class_edges=self.class_edges,
            workers=workers,
            on_progress=on_progress,
            allow_plugins=allow_plugins,
        )
        return replace(self, remedies=tuple(remedies))

    def folder(self, run: Path) -> Path:
        """Where the explanation stands in the folder of a run."""
        return run / "explain" / f"{SUMMARY_KEYS[self.cause.metric]}-p{self.cause.percentile:g}"

    def as_json(self) -> dict[str, Json]:
        """Everything that was found, for programs. Times in s."""
        cause, summary = self.cause, self.observed.result.summary
        remedies = None
        if self.remedies is not None:
            remedies = [
                _remedy_json(one, self.baseline, cause.metric) for one in ranked(self.remedies, cause.metric)
            ]
        document = {
            "explanation": {
                **asdict(cause),
                "metric": SUMMARY_KEYS[cause.metric],
                "top_cause": cause.top,
                "weight": cause.weight,
                "in_words": cause_in_words(cause, self.observed.result.setup.engine),
            },
            "as_it_is": _effect_json(self.baseline),
            "remedies": remedies,
            "prompt_classes": {"lower_edges": self.class_edges, "as_it_is": self.baseline.by_prompt},
            "parts": {part.key: {"label": part.label, "meaning": part.meaning} for part in PARTS},
            "run": {key: summary[key] for key in _OF_THE_RUN},
        }
        plain = plain_json(document)
        assert isinstance(plain, dict)
        return plain


def _remedy_json(remedy: Remedy, baseline: Effect, metric: str) -> dict[str, object]:
    effect = remedy.effect
    return {
        "label": remedy.change.label,
        "overrides": remedy.change.overrides,
        "effect": None if effect is None else _effect_json(effect),
        "error": remedy.error,
        "classes": () if effect is None else effect.by_prompt,
        "verdict": "cannot be run" if effect is None else verdict(effect, baseline, metric),
    }


def _effect_json(effect: Effect) -> dict[str, object]:
    latency_s = {SUMMARY_KEYS[metric]: value for metric, value in effect.latency_s.items()}
    document = {**asdict(effect), "latency_s": latency_s}
    del document["by_prompt"]
    return document


def explain(
    source: Source | str,
    metric: str = "ttft",
    percentile: float = 99.0,
    *,
    with_remedies: bool = True,
    progress: RunProgress | None = None,
    allow_plugins: bool = False,
) -> Explanation:
    """Say why a percentile of `ttft`, `e2e` or `itl` of a scenario is what it is, and what would change it.

    `source` is a scenario (name or path) or the folder of a run. Raises `InputError` for what cannot be read,
    run or explained.
    """
    check_question(metric, percentile, with_remedies=with_remedies)
    source = Source.of(source) if isinstance(source, str) else source
    observed = observe(source.load(), progress=progress, allow_plugins=allow_plugins)
    cause = find_cause(observed, metric, percentile)
    class_edges = _prompt_classes(observed)
    baseline = baseline_effect(observed, percentile, class_edges)
    found = Explanation(source, observed, cause, baseline, class_edges)
    if with_remedies and found.may_have_remedies:
        return found.with_remedies(allow_plugins=allow_plugins)
    return found


def check_question(metric: str, percentile: float, *, with_remedies: bool) -> None:
    """Raise `InputError` for what nobody can answer."""
    if metric not in METRICS:
        raise input_error(f"must be one of {', '.join(METRICS)}", where=f"metric {metric}")
    if metric == "itl" and with_remedies and percentile not in ITL_PERCENTILES:
        raise input_error("of ITL 50, 90, 95 and 99, or any other with --no-remedies", where="--percentile")


def _prompt_classes(observed: Observed) -> tuple[int, ...]:
    """Lower edges of the classes of prompt length, if prompts are of several kinds."""
    times = observed.result.times
    budget = observed.result.setup.replica.scheduler.max_num_batched_tokens
    return tuple(prompt_edges(times.prompt_tokens[times.done].astype(np.float64), budget))


def write(explanation: Explanation, folder: Path, screen: str) -> None:
    """Write `explain.json`, the parts of every request, and the screen as text; `InputError` if it fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(explanation.as_json(), indent=2, allow_nan=False, ensure_ascii=False)
        (folder / "explain.json").write_text(text + "\n", encoding="utf-8")
        (folder / "explain.txt").write_text(screen + "\n", encoding="utf-8")
        explanation.observed.table().to_csv(folder / "parts.csv", index=False, lineterminator="\n")
    except OSError as error:
        raise input_error(
            f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(folder)
        ) from None
