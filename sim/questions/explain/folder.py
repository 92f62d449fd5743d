"""What an explanation leaves in the run's folder: `explain/<metric>-p<percentile>/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from sim.errors import input_error
from sim.questions.explain.explain import Explanation
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import PARTS
from sim.questions.explain.remedies import Effect, Remedy
from sim.questions.explain.screen import ranked, verdict
from sim.values import Json, plain_json


def folder_for(run: Path, found: Explanation) -> Path:
    """The folder of an explanation, made if need be; `InputError` if it cannot be."""
    folder = run / "explain" / f"{found.metric}-p{found.percentile:g}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise input_error(
            f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(folder)
        ) from None
    return folder


def as_json(
    found: Explanation,
    summary: Mapping[str, Json],
    baseline: Effect,
    remedies: Sequence[Remedy] | None,
    class_edges: Sequence[int],
    baseline_classes: Sequence[tuple[float, float, int]],
    causes: Sequence[str],
) -> dict[str, object]:
    """Everything that the screen says, for programs. Times in s."""
    told = asdict(found) | {"top_cause": found.top, "weight": found.weight, "in_words": list(causes)}
    tried = None
    if remedies is not None:
        tried = [
            asdict(remedy)
            | {
                "verdict": verdict(remedy.effect, baseline, found.metric)
                if remedy.effect
                else "cannot be run"
            }
            for remedy in ranked(remedies, found.metric)
        ]
    kept = (
        "mirrors",
        "dryserve_version",
        "calibration_id",
        "error_band",
        "seed",
        "loop",
        "warmup_s",
        "notes",
    )
    document = {
        "explanation": told,
        "as_it_is": asdict(baseline),
        "remedies": tried,
        "prompt_classes": {"lower_edges": list(class_edges), "as_it_is": list(baseline_classes)},
        "parts": {part.key: {"label": part.label, "meaning": part.meaning} for part in PARTS},
        "run": {key: summary[key] for key in kept},
    }
    plain = plain_json(document)
    assert isinstance(plain, dict)
    return plain


def write(folder: Path, observed: Observed, document: Mapping[str, object], screen: str) -> None:
    """Write `explain.json`, the parts of every request, and the screen as text; `InputError` if it fails."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
        (folder / "explain.json").write_text(text + "\n", encoding="utf-8")
        (folder / "explain.txt").write_text(screen + "\n", encoding="utf-8")
        observed.table().to_csv(folder / "parts.csv", index=False, lineterminator="\n")
    except OSError as error:
        raise input_error(
            f"cannot be written: {(error.strerror or str(error)).lower()}", where=str(folder)
        ) from None
