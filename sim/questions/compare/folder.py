"""The folder of a comparison: `compare.json`, `differences.csv`, `classes.csv`, scenario and `figures/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.questions.compare.classes import mean_jain
from sim.report.answer_folder import draw_figures, json_text, records, write_folder
from sim.values import Json

if TYPE_CHECKING:
    from sim.questions.compare.compare import Comparison


def write(found: Comparison, root: Path) -> Path:
    """Write the tables; raises `InputError` if that fails."""
    files = {
        "compare.json": json_text(as_json(found)),
        "differences.csv": found.table.to_csv(index=False, lineterminator="\n"),
    }
    if len(found.classes):
        files["classes.csv"] = found.classes.to_csv(index=False, lineterminator="\n")
    question: dict[str, Json] = {
        "seeds": list(found.seeds),
        "variants": {variant.label: variant.scenario.dump_resolved() for variant in found.variants},
    }
    return write_folder(root, found.base.name, question, found.base.dump_resolved(), files)


def draw(found: Comparison, folder: Path) -> dict[str, str]:
    """Draw the figures into the folder; say by name which failed, and why."""
    from sim.questions.compare.pictures import figures

    return draw_figures(figures(found), folder)


def as_json(found: Comparison) -> dict[str, Json]:
    """The whole comparison but its single runs, as plain data."""
    indices = {label: mean_jain(run) for label, run in zip(found.labels, found.runs, strict=True)}
    return {
        "reference": found.labels[0],
        "variants": list(found.labels),
        "seeds": list(found.seeds),
        "comparisons": len(found.verdicts),
        "nothing_shown": found.nothing_shown,
        "differences": records(found.table),
        "classes": records(found.classes),
        "jain_index": {
            label: dict(zip(("estimate", "low", "high"), _finite(ends), strict=True))
            for label, ends in indices.items()
        },
        "failed": dict(found.failed),
    }


def _finite(values: tuple[float, ...]) -> list[Json]:
    return [value if value == value else None for value in values]
