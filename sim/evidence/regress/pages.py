"""The artefacts of a comparison: `report.md`, `figures/*.png`, `regress.json`, and a baseline to accept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import input_error
from sim.evidence.regress.baseline import write_baseline
from sim.evidence.regress.compare import Regression, ScenarioDifference
from sim.evidence.regress.screen import against, number, sentence, size
from sim.report import markdown
from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Plate, Table, draw_plate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BEFORE, NOW = "baseline", "now"
KINDS = ("ttft", "tpot", "e2e")
_READING = (
    "The last column holds a difference against the median error that validation found for such a number on "
    "such a kind of run: below 1 it is smaller than what the model is known to be wrong by. In figures the "
    "baseline is drawn first; where only one curve shows, the two are the same."
)


def write(
    found: Regression, folder: Path, *, figures: bool = True, on_drawn: Callable[[str], None] | None = None
) -> dict[str, str]:
    """Write all of it into the folder; returns by name why a figure could not be drawn."""
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        (folder / "regress.json").write_text(
            json.dumps(as_json(found), indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        write_baseline(folder, found.now, found.before)
        failures: dict[str, str] = {}
        blocks: list[Block] = [Paragraph(_verdict(found)), Paragraph(_READING)]
        for scenario in found.scenarios:
            blocks += _text(scenario)
            if scenario.fault or not figures:
                continue
            for plate in _plates(found, scenario.name):
                picture = draw_plate(plate)
                if on_drawn:
                    on_drawn(plate.name)
                if picture.failure:
                    failures[plate.name] = picture.failure
                else:
                    (folder / "figures" / f"{plate.name}.png").write_bytes(picture.png)
                blocks.append(picture)
        page = markdown.render(Document("Regression", blocks))
        (folder / "report.md").write_text(page, encoding="utf-8")
    except OSError as error:
        raise input_error(
            f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(folder)
        ) from None
    return failures


def as_json(found: Regression) -> dict[str, Any]:
    """Everything that was found, for programs."""
    return {
        "baseline_version": found.before.version,
        "failed": [scenario.name for scenario in found.failed],
        "scenarios": {
            scenario.name: {
                "differs": scenario.differs,
                "fault": scenario.fault,
                "layers": [{"layer": layer.name, "evidence": layer.evidence} for layer in scenario.layers],
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
            for scenario in found.scenarios
        },
    }


def _verdict(found: Regression) -> str:
    if not found.failed:
        count, version = len(found.scenarios), found.before.version
        return f"All {count} scenarios are as the baseline of dryserve {version} has them."
    return "**" + "**\n\n**".join(sentence(scenario) for scenario in found.failed) + "**"


def _text(scenario: ScenarioDifference) -> Iterator[Block]:
    yield Heading(2, scenario.name)
    if scenario.fault:
        yield Paragraph(f"This scenario {scenario.fault}.")
        return
    if not scenario.differs:
        yield Paragraph("As in the baseline.")
    if scenario.layers:
        yield Bullets(tuple(f"**{layer.name}**: {layer.evidence}" for layer in scenario.layers))
    rows = tuple(
        (
            f"**{change.metric.name}**" if not change.allowed else change.metric.name,
            number(change.before),
            number(change.now),
            size(change),
            against(change) or "–",
        )
        for change in scenario.changes
        if change.before is not None or change.now is not None
    )
    header = ("", BEFORE, NOW, "difference", "against validation")
    yield Table(header, rows, (False, True, True, True, False))
    if scenario.band:
        yield Paragraph(f"{scenario.band[0].upper()}{scenario.band[1:]}.")


def _plates(found: Regression, name: str) -> Iterator[Plate]:
    """Latencies (F1) and timelines (F7, F8) of a scenario, baseline against now."""
    from sim import figures

    sides = {BEFORE: found.before.scenarios[name], NOW: found.now[name]}

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
        "Latencies; dots are p50, p90 and p99, hollow with fewer than 10 samples above.",
        latency,
        (9.3, 2.7),
    )
    yield Plate(
        f"{name}-timeline",
        "Running (solid) and waiting (dashed) requests, and KV blocks in use, over the fleet, means over "
        "equal stretches of time; ticks are preemptions.",
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
    return table.assign(t_s=timeline.get("start_s", 0.0) + ends * table["step_time_s"])
