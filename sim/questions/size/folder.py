"""The folder of a sizing: `size.json`, `candidates.csv`, `fleets.csv`, the scenario and `figures/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.questions.size.conclusion import conclusions
from sim.report.answer_folder import draw_figures, json_text, records, write_folder
from sim.values import Json, plain_json

if TYPE_CHECKING:
    from sim.questions.size.size import Sizing


def write(sizing: Sizing, root: Path) -> Path:
    """Write the tables; raises `InputError` if that fails."""
    files = {
        "size.json": json_text(as_json(sizing)),
        "candidates.csv": sizing.capacity_table.to_csv(index=False, lineterminator="\n"),
        "fleets.csv": sizing.fleet_table.to_csv(index=False, lineterminator="\n"),
    }
    return write_folder(root, sizing.base.name, question(sizing), sizing.base.dump_resolved(), files)


def draw(sizing: Sizing, folder: Path) -> dict[str, str]:
    """Draw the figures into the folder; say by name which failed, and why."""
    from sim.questions.size.pictures import figures

    return draw_figures(figures(sizing), folder)


def question(sizing: Sizing) -> dict[str, Json]:
    """What was asked."""
    prices = sizing.prices
    return {
        "rate_per_s": sizing.rate_per_s,
        "num_gpus": sizing.num_gpus,
        "promise": sizing.promise.words(),
        "shares": dict(sizing.promise.shares),
        "candidates": [candidate.label for candidate in sizing.candidates],
        "prices": None if prices is None else dict(prices.per_gpu_hour),
        "currency": None if prices is None else prices.currency,
        "replications": sizing.replications,
        "precision": sizing.precision,
        "requests": sizing.length.requests,
    }


def as_json(sizing: Sizing) -> dict[str, Json]:
    """The whole sizing as plain data."""

    def label(number: int | None) -> Json:
        return None if number is None else sizing.candidates[number].label

    return {
        **question(sizing),
        "smallest": label(sizing.smallest),
        "cheapest": label(sizing.cheapest),
        "conclusions": list(conclusions(sizing)),
        "capacities": records(sizing.capacity_table),
        "fleets": records(sizing.fleet_table),
        "arithmetic": {
            sizing.candidates[n].label: plain_json(fleet.arithmetic) for n, fleet in sizing.fleets.items()
        },
        "binding": {
            sizing.candidates[n].label: sizing.bound(n) for n, c in sizing.found.items() if c.error is None
        },
    }
