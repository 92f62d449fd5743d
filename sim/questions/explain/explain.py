"""Why a latency percentile of a run is what it is, and what would change it: the whole way, in order.

1. `observe` simulates the scenario once more under observation and books all time of every finished request
   under the parts of its latency (`ledger`, over the phases of steps in `step_phases`);
2. `find_cause` compares the slowest with the middle, part by part (`parts`), and looks at what went on around
   them (`circumstances`);
3. `candidates` proposes changes of the scenario that can matter for this cause;
4. `try_remedies` simulates each of them with the same requests and seed.

`document` shows it, in the sentences of `words` and with the plates of `figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sim.cluster.world import Progress
from sim.errors import input_error
from sim.jobs.options import RunOptions
from sim.questions.explain import document
from sim.questions.explain.candidates import candidates, facts_of
from sim.questions.explain.cause import METRICS, Cause, find_cause
from sim.questions.explain.figures import plates
from sim.questions.explain.observe import Observed, observe
from sim.questions.explain.parts import PARTS
from sim.questions.explain.remedies import (
    ITL_PERCENTILES,
    Effect,
    Effects,
    Remedy,
    Source,
    effects_of,
    ranked,
    try_remedies,
    verdict,
)
from sim.questions.explain.words import cause_in_words
from sim.report.answer import Answer
from sim.report.document import Block, Plate
from sim.results import run_folder
from sim.scenario import Scenario
from sim.values import Json, plain_json

if TYPE_CHECKING:
    import pandas as pd

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


@dataclass(frozen=True, repr=False)
class Explanation(Answer):
    """The cause of one percentile of one metric of one run, and what came of changes that may help.

    `effects.remedies` is None where none were simulated. `tables()` has the parts of the TTFT and E2E of
    every request, s.
    """

    kind: ClassVar[str] = "explain"
    owns_folder: ClassVar[bool] = False

    source: Source
    observed: Observed
    cause: Cause
    effects: Effects

    @property
    def question(self) -> str:
        """The value that is explained."""
        return document.title(self.observed, self.cause)

    @property
    def may_have_remedies(self) -> bool:
        """Whether anything was found that a change could help."""
        return bool(self.cause.slow.size or self.cause.preemption.count)

    def with_remedies(self, options: RunOptions | None = None) -> Explanation:
        """The same with every change simulated that may help. What was simulated is kept and found again."""
        proposals = candidates(facts_of(self.observed, self.cause))
        scenario, edges = self.observed.result.scenario, self.effects.class_edges
        remedies = try_remedies(self.source, scenario, proposals, self.cause.percentile, edges, options)
        return replace(self, effects=replace(self.effects, remedies=tuple(remedies)))

    def findings(self) -> list[Block]:
        """What was found in the run itself."""
        return list(document.findings(self.observed, self.cause))

    def consequences(self) -> list[Block]:
        """What came of changes, and what to know of all this."""
        return list(document.consequences(self.cause, self.effects, self.observed.result.summary))

    def blocks(self) -> Sequence[Block]:
        """Everything below the title."""
        return [*self.findings(), *self.consequences()]

    def plates(self) -> Sequence[Plate]:
        """Where the time goes, and the worst stretch of the run."""
        return plates(self.observed, self.cause)

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The parts of every request."""
        return {"parts.csv": self.observed.table()}

    def texts(self) -> Mapping[str, str]:
        """The document as text."""
        return {"explain.txt": f"{self.as_text()}\n"}

    def write(self, root: Path | str | None = None, *, draw: bool = True) -> Path:
        """Write everything below the folder of the run: the one that was named, or else the scenario's below
        `root` (by default `runs`); return the folder. Raises `InputError` if that fails.
        """
        return super().write("runs" if root is None else root, draw=draw)

    def folder_in(self, root: Path) -> Path:
        """`<run>/explain/<metric>-p<percentile>`."""
        run = self.source.run or root / run_folder.folder_name(self.observed.result.scenario)
        return run / "explain" / f"{SUMMARY_KEYS[self.cause.metric]}-p{self.cause.percentile:g}"

    def as_json(self) -> dict[str, Json]:
        """Everything that was found, for programs. Times in s."""
        cause, effects, summary = self.cause, self.effects, self.observed.result.summary
        remedies = None
        if effects.remedies is not None:
            best_first = ranked(effects.remedies, cause.metric)
            remedies = [_remedy_json(remedy, effects.as_it_is, cause.metric) for remedy in best_first]
        plain = plain_json(
            {
                "explanation": {
                    **asdict(cause),
                    "metric": SUMMARY_KEYS[cause.metric],
                    "top_cause": cause.top,
                    "weight": cause.weight,
                    "in_words": cause_in_words(cause, self.observed.result.setup.engine),
                },
                "as_it_is": _effect_json(effects.as_it_is),
                "remedies": remedies,
                "prompt_classes": {
                    "lower_edges": effects.class_edges,
                    "as_it_is": effects.as_it_is.by_prompt,
                },
                "parts": {part.key: {"label": part.label, "meaning": part.meaning} for part in PARTS},
                "run": {key: summary[key] for key in _OF_THE_RUN},
            }
        )
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
    own = {**asdict(effect), "latency_s": latency_s}
    del own["by_prompt"]
    return own


def explain(
    run: Scenario | str | Path,
    metric: str = "ttft",
    percentile: float = 99.0,
    *,
    overrides: Sequence[str] = (),
    with_remedies: bool = True,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Say why a percentile of `ttft`, `e2e` or `itl` of a scenario is what it is, and what would change it.

    >>> small = ["workload.num_requests=60"]
    >>> found = explain("kv-starved", "ttft", 90, overrides=small, with_remedies=False)
    >>> found.cause.top, found.cause.slow.size
    ('kv_blocks', 6)
    >>> ax = found.plot("decomposition")

    `run` is a scenario (loaded, by name or by path, with `overrides`) or the folder of a run. `options` say
    how remedies are simulated; `progress(time_s, ended, requests)` is called now and then while the run
    itself is. Raises `InputError` for what cannot be read, run or explained.
    """
    check_question(metric, percentile, with_remedies=with_remedies)
    source = Source.of(run, tuple(overrides))
    allow_plugins = options is not None and options.allow_plugins
    observed = observe(source.load(), progress=progress, allow_plugins=allow_plugins)
    cause = find_cause(observed, metric, percentile)
    found = Explanation(source, observed, cause, effects_of(observed, percentile))
    return found.with_remedies(options) if with_remedies and found.may_have_remedies else found


def check_question(metric: str, percentile: float, *, with_remedies: bool) -> None:
    """Raise `InputError` for what nobody can answer."""
    if metric not in METRICS:
        raise input_error(f"must be one of {', '.join(METRICS)}", where=f"metric {metric}")
    if metric == "itl" and with_remedies and percentile not in ITL_PERCENTILES:
        raise input_error("of ITL 50, 90, 95 and 99, or any other with --no-remedies", where="--percentile")
