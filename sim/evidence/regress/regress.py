"""A set of small scenarios against its baseline, as an answer: what moved, how far, and in which layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sim.errors import input_error
from sim.evidence.regress.baseline import (
    FILE,
    Baseline,
    Observation,
    baseline_text,
    read_baseline,
    scenario_files,
)
from sim.evidence.regress.compare import Change, ScenarioDifference, differences
from sim.evidence.regress.observe import observe
from sim.report import text
from sim.report.answer import Answer
from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Plate, Preformatted, Table
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BEFORE, NOW = "baseline", "now"
KINDS = ("ttft", "tpot", "e2e")
MOST_NUMBERS = 6
"""So many numbers of a scenario are shown on the screen; the page has all."""
_READING = (
    "The last column holds a difference against the median error that validation found for such a number on "
    "such a kind of run: below 1 it is smaller than what the model is known to be wrong by. In figures the "
    "baseline is drawn first; where only one curve shows, the two are the same."
)


def regress(
    folder: Path | str, *, on_done: Callable[[str], None] | None = None, allow_plugins: bool = False
) -> Regression:
    """Run a folder of scenarios and hold what they give against the folder's baseline.

    `on_done` is told the name of each scenario that has been run. Raises `InputError` for scenarios or a
    baseline that cannot be used, and where there is none yet.
    """
    folder = Path(folder)
    files, before = scenario_files(folder), read_baseline(folder)
    if before is None:
        message = (
            f'has no baseline.json; dryserve regress {folder} --accept --why "first baseline" writes one'
        )
        raise input_error(message, where=str(folder))
    now = observe(files, before.scenarios, on_done, allow_plugins=allow_plugins)
    return Regression(folder, before, now)


@dataclass(frozen=True, repr=False)
class Regression(Answer):
    """What a comparison found; `before` and `now` are what was compared, `folder` where the scenarios are."""

    kind: ClassVar[str] = "regress"
    owns_folder: ClassVar[bool] = False

    folder: Path
    before: Baseline
    now: Mapping[str, Observation]

    @cached_property
    def scenarios(self) -> tuple[ScenarioDifference, ...]:
        """The differences, scenario by scenario."""
        return differences(self.before, self.now)

    @property
    def failed(self) -> list[ScenarioDifference]:
        """Scenarios that differ."""
        return [scenario for scenario in self.scenarios if scenario.differs]

    @property
    def has_failed(self) -> bool:
        """Whether anything differs."""
        return bool(self.failed)

    @property
    def question(self) -> str:
        """What was compared with what, and the verdict."""
        verdict = f"{len(self.failed)} differ" if self.failed else "all as it was"
        against = f"against the baseline of dryserve {self.before.version}"
        return f"{len(self.scenarios)} scenarios of {self.folder} {against}: {verdict}"

    def blocks(self) -> Sequence[Block]:
        """Every number of every scenario."""
        return list(_page(self.scenarios, self.before.version))

    def as_text(self) -> str:
        """What differs, for the screen: layers, the numbers that moved most, and a line for each failure."""
        return text.render(Document(self.question, list(_screen(self.failed))))

    def plates(self) -> Sequence[Plate]:
        """Two figures of each scenario that is on both sides."""
        return [
            plate
            for scenario in self.scenarios
            if not scenario.fault
            for plate in _plates(scenario.name, self.before.scenarios[scenario.name], self.now[scenario.name])
        ]

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """None: the numbers stand in `regress.json`."""
        return {}

    def texts(self) -> Mapping[str, str]:
        """The baseline as it would be."""
        return {FILE: baseline_text(self.now, self.before)}

    def folder_in(self, root: Path) -> Path:
        """`root` itself."""
        return root

    def as_json(self) -> dict[str, Json]:
        """Everything that was found, for programs."""
        return {
            "baseline_version": self.before.version,
            "failed": [scenario.name for scenario in self.failed],
            "scenarios": {
                scenario.name: {
                    "differs": scenario.differs,
                    "fault": scenario.fault,
                    "layers": [
                        {"layer": layer.name, "evidence": layer.evidence} for layer in scenario.layers
                    ],
                    "numbers": {
                        change.metric.key: {
                            "baseline": change.before,
                            "now": change.now,
                            "relative": change.relative,
                            "allowed": change.allowed,
                            "times_validation_error": change.bands,
                        }
                        for change in scenario.changes
                    },
                }
                for scenario in self.scenarios
            },
        }


def _screen(failed: Sequence[ScenarioDifference]) -> Iterator[Block]:
    for scenario in failed:
        yield Heading(2, scenario.name)
        if scenario.fault:
            yield Paragraph(scenario.fault)
            continue
        if scenario.layers:
            yield Bullets(tuple(f"{layer.name}: {layer.evidence}" for layer in scenario.layers))
        if scenario.beyond:
            first = scenario.headline
            shown = [
                first,
                *[change for change in scenario.beyond if change is not first][: MOST_NUMBERS - 1],
            ]
            yield _table(shown)
            if len(scenario.beyond) > len(shown):
                yield Paragraph(f"and {len(scenario.beyond) - len(shown)} more numbers")
    if failed:
        yield Preformatted("\n".join(f"FAIL {sentence(scenario)}" for scenario in failed))


def _page(scenarios: Sequence[ScenarioDifference], version: str) -> Iterator[Block]:
    failed = [scenario for scenario in scenarios if scenario.differs]
    if not failed:
        yield Paragraph(f"All {len(scenarios)} scenarios are as the baseline of dryserve {version} has them.")
    for scenario in failed:
        yield Paragraph(f"**{sentence(scenario)}**")
    yield Paragraph(_READING)
    for scenario in scenarios:
        yield Heading(2, scenario.name)
        if scenario.fault:
            yield Paragraph(f"This scenario {scenario.fault}.")
            continue
        if not scenario.differs:
            yield Paragraph("As in the baseline.")
        if scenario.layers:
            yield Bullets(tuple(f"**{layer.name}**: {layer.evidence}" for layer in scenario.layers))
        yield _table(
            [change for change in scenario.changes if change.before is not None or change.now is not None]
        )
        if scenario.band:
            yield Paragraph(f"{scenario.band[0].upper()}{scenario.band[1:]}.")


def _table(changes: Sequence[Change]) -> Table:
    """A row a number; what the baseline does not allow is strong."""
    rows = tuple(
        (
            change.metric.name if change.allowed else f"**{change.metric.name}**",
            _number(change.before),
            _number(change.now),
            change.size,
            _against(change),
        )
        for change in changes
    )
    header = ("", BEFORE, NOW, "difference", "against validation")
    return Table(header, rows, (False, True, True, True, False))


def sentence(scenario: ScenarioDifference) -> str:
    """What failed in one line: scenario, number, size, layer."""
    if scenario.fault:
        return f"{scenario.name}: {scenario.fault}"
    names, beyond = scenario.layer_names, scenario.beyond
    if not beyond:
        does = "does what it did" if len(names) == 1 else "do what they did"
        return f"{scenario.name}: no number moved, but {' and '.join(names)} no longer {does}"
    first = scenario.headline
    more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
    return f"{scenario.name}: {first.short_name} {first.size}{more}; likely layer: {', '.join(names)}"


def _against(change: Change) -> str:
    """The difference against what validation found, in words."""
    if change.bands is None or change.before == change.now:
        return "–"
    times = f"{change.bands:.1f}" if change.bands >= 0.05 else f"{change.bands:.1g}"
    return f"{times} × the validation error of {change.band_percent:.1f} %"


def _number(value: float | None) -> str:
    """A number in few digits."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _plates(name: str, before: Observation, now: Observation) -> Iterator[Plate]:
    """Latencies (F1) and timelines (F7, F8) of a scenario, baseline against now."""
    from sim import figures

    sides = {BEFORE: before, NOW: now}

    def latency(figure: Figure) -> None:
        axes = figure.subplots(1, len(KINDS))
        for ax, kind in zip(axes, KINDS, strict=True):
            samples = {label: side["samples_s"][kind] for label, side in sides.items()}
            figures.plot_latency_cdf(samples, ax, metric=kind, legend=False)
            if ax is not axes[0]:
                ax.set_ylabel("")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)

    def timeline(figure: Figure) -> None:
        tables = {label: _steps(side["timeline"]) for label, side in sides.items()}
        load, kv = figure.subplots(2, 1, sharex=True)
        figures.plot_load_timeline(tables, load)
        figures.plot_kv_timeline(tables, kv)
        load.set_xlabel("")
        if kv.get_legend() is not None:
            kv.get_legend().remove()

    yield Plate(
        f"{name}-latency",
        f"{name}: latencies; dots are p50, p90 and p99, hollow with fewer than 10 samples above.",
        latency,
        (9.3, 2.7),
    )
    yield Plate(
        f"{name}-timeline",
        f"{name}: running (solid) and waiting (dashed) requests, and KV blocks in use, over the fleet, means "
        "over equal stretches of time; ticks are preemptions.",
        timeline,
        (9.3, 4.0),
    )


def _steps(timeline: Mapping[str, Any]) -> pd.DataFrame:
    """A timeline as a table of steps, one a stretch."""
    import numpy as np
    import pandas as pd

    columns = {name: values for name, values in timeline.items() if isinstance(values, list)}
    table = pd.DataFrame(columns).assign(replica=0, step_time_s=timeline.get("stretch_s", 0.0))
    ends = np.arange(1, len(table) + 1)
    return table.assign(end_s=timeline.get("start_s", 0.0) + ends * table["step_time_s"])
