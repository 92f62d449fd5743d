"""Makes the error bands that predictions show (`sim.results.error_bands`) out of a validation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from sim.evidence.validate.replay import Outcome
from sim.evidence.validate.scoring import Comparison, summarize_errors
from sim.results.error_bands import BANDED, Kind

#: Fewer rows than this say too little to lean on.
ENOUGH_ROWS = 3


def make_bands(outcomes: Iterable[Outcome], command: str) -> dict[str, object]:
    """The content of `data/bands.json`: errors of every kind, and wider kind, that has enough rows.

    V0 engines are left out: no scenario predicts one.
    """
    groups: dict[str, dict[str, list[Comparison]]] = {}
    for outcome in outcomes:
        run = outcome.run
        if run.engine_gen == "V0":
            continue
        saturated = any(c.metric.startswith("saturated_") for c in outcome.comparisons) or run.load in (
            "closed",
            "burst",
        )
        kind = Kind.of(run.gpu or "", run.model or "", saturated=saturated)
        if kind is None:
            continue
        for comparison in outcome.comparisons:
            # Below saturation throughput only repeats the rate that was offered: no merit, and no band.
            metric = comparison.metric.removeprefix("saturated_")
            if metric in BANDED:
                for wider in kind.widened():
                    groups.setdefault(str(wider), {}).setdefault(metric, []).append(comparison)
    bands = {}
    for name in sorted(groups):
        errors = {metric: summarize_errors(rows) for metric, rows in sorted(groups[name].items())}
        kept = {
            metric: [round(e.median, 2), round(e.p90, 2), e.rows]
            for metric, e in errors.items()
            if e.rows >= ENOUGH_ROWS
        }
        if kept:
            bands[name] = kept
    return {"command": command, "columns": ["median %", "p90 %", "rows"], "bands": bands}


def write_bands(path: Path, outcomes: Iterable[Outcome], command: str) -> None:
    """Write `make_bands` as JSON, one kind a line."""
    made = make_bands(outcomes, command)
    rows = [
        f"  {json.dumps(kind)}: {json.dumps(errors)}"
        for kind, errors in cast("dict[str, object]", made["bands"]).items()
    ]
    head = [f" {json.dumps(name)}: {json.dumps(made[name])}," for name in ("command", "columns")]
    text = "\n".join(["{", *head, ' "bands": {', ",\n".join(rows), " }", "}"])
    path.write_text(text + "\n", encoding="utf-8")
