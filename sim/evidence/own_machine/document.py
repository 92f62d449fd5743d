"""The calibration file of a machine: all of the calibration that it rests on, and what the machine has shown.

It is whole, so that it says the same whatever is shipped later; operators that were borrowed are not written
and are borrowed anew.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cost_models import Calibration
from cost_models.calibration import Residual
from cost_models.machine import Machine
from sim.errors import writing


def calibration_document(
    base: Calibration,
    machine: Machine,
    *,
    source: str,
    date: str,
    intervals: Mapping[str, tuple[float, float]],
    left: Mapping[str, str],
    residuals: Sequence[tuple[str, int, float, float, float]],
) -> dict[str, object]:
    """What `cost_models.load_calibration` reads back: `base` on `machine`.

    residuals: kind of held-out steps, their number, median and 90th percentile of the error, and bias, in %.
    """
    fitted = ", ".join(machine.fitted) or "nothing"
    told = f"{fitted} as a recording of one machine shows them; all else is of {base.calibration_id}"
    rows = [Residual(f"step, {kind}", "held out", *numbers) for kind, *numbers in residuals]  # type: ignore[arg-type]
    return {
        "id": f"{base.gpu}/own/{date}",
        "gpu": base.gpu,
        "source": source,
        "date": date,
        "measured": base.is_measured,
        "note": f"{base.note}; {told}" if base.note else told,
        "machine": machine.as_data(),
        "intervals_95_percent": {name: list(interval) for name, interval in intervals.items()},
        "left_as_it_was": dict(left),
        "parameters": own_parameters(base),
        "residuals": [dataclasses.asdict(row) for row in rows],
    }


def own_parameters(fitted: Calibration) -> dict[str, object]:
    """The operators of a calibration that it has borrowed from no other part."""
    parameters: dict[str, object] = {}
    for field in dataclasses.fields(fitted):
        value = getattr(fitted, field.name)
        if field.name in ("machine", *fitted.borrowed):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parameters[field.name] = dataclasses.asdict(value)
        elif isinstance(value, dict) and field.name != "borrowed":
            parameters[field.name] = {
                key: dataclasses.asdict(params)
                for key, params in value.items()
                if f"{field.name}.{key}" not in fitted.borrowed
            }
    return parameters


def write_calibration(document: Mapping[str, object], path: Path) -> None:
    """Write a calibration file; InputError if that fails."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
