"""How far a prediction may be off: the errors that validation found for the nearest kind of run.

A kind is a GPU, a family of models and a regime of load. The errors of each kind stand beside the validation
that found them (`sim/evidence/validate/data/bands.json`), with the command that made them; a prediction
takes those of its own kind, or of the nearest that has enough rows, and says which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from cost_models import CostModelError, gpu, model
from sim.scenario import Scenario
from sim.values import Json

#: The metrics that a band is given for: those shown first wherever results are shown.
BANDED = ("out_tput_tok_s", "ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99")
_ANY = "any"


@dataclass(frozen=True)
class Kind:
    """What errors depend on: GPU part, architecture, `dense`, `moe` or `mla`, `open loop` or `saturated`."""

    gpu: str
    arch: str
    family: str
    load: str

    @classmethod
    def of(cls, gpu_name: str, model_name: str, *, saturated: bool) -> Kind | None:
        """The kind of a run; None if the GPU or the model is not known."""
        try:
            part, spec = gpu(gpu_name), model(model_name).model
        except CostModelError:
            return None
        family = "mla" if spec.mla else "moe" if spec.moe else "dense"
        return cls(part.name, part.arch, family, "saturated" if saturated else "open loop")

    def widened(self) -> tuple[Kind, ...]:
        """This kind and what it belongs to, nearest first."""
        return (
            self,
            Kind(self.gpu, self.arch, _ANY, self.load),
            Kind(_ANY, self.arch, self.family, self.load),
            Kind(_ANY, self.arch, _ANY, self.load),
            Kind(_ANY, _ANY, self.family, self.load),
            Kind(_ANY, _ANY, _ANY, self.load),
        )

    def __str__(self) -> str:
        where = self.gpu if self.gpu != _ANY else self.arch if self.arch != _ANY else "any GPU"
        return ", ".join([where, self.family if self.family != _ANY else "any model", self.load])


@dataclass(frozen=True)
class Band:
    """Absolute errors in % found for `kind`: by metric the median, the 90th percentile, the rows.

    `exact` is False where the kind asked for had too few rows and a wider one stands in.
    """

    kind: str
    exact: bool
    errors: Mapping[str, tuple[float, float, int]]
    command: str

    def line(self) -> str:
        """One line for a footer."""
        names = {"out_tput_tok_s": "throughput", "ttft_mean": "TTFT", "tpot_mean": "TPOT", "e2e_mean": "E2E"}
        parts = [
            f"{name} {self.errors[key][0]:.0f} % ({self.errors[key][1]:.0f} %)"
            for key, name in names.items()
            if key in self.errors
        ]
        rows = max((each[2] for each in self.errors.values()), default=0)
        nearest = "" if self.exact else "nearest kind, "
        return f"median (p90) error in validation, {nearest}{self.kind}, {rows} rows: {', '.join(parts)}"


def error_band(scenario: Scenario, *, overloaded: bool = False) -> Band | None:
    """The band of a scenario's prediction; None where nothing like it was ever measured, or where constants
    of one machine take the place of those that were validated.

    A closed loop and a burst run the engine at its limit, as any load above capacity does. Whether an open
    loop is above capacity is known only after the run: `overloaded`.
    """
    if scenario.calibration is not None:
        return None
    saturated = overloaded or scenario.workload.kind in ("closed_loop", "burst")
    kind = Kind.of(scenario.gpu, scenario.model, saturated=saturated)
    return None if kind is None else nearest_band(kind)


def fell_behind(arrival_s: np.ndarray, end_s: np.ndarray, max_concurrency: int | None = None) -> bool:
    """Whether a run did not keep up with its arrivals: requests in flight grew as long as more came, or the
    client's cap on them was reached both in the middle and at the end.

    From the middle of the arrivals to their end the number in flight must have grown by more than 4 % of the
    requests that arrived meanwhile (the share below which a measured run counts as saturated) and by more
    than three standard deviations of a Poisson number. A run whose first requests take more than a fifth of
    its arrivals is still filling up in the middle, and is not judged. `end_s` is NaN for a request that never
    ended.
    """
    order = np.argsort(arrival_s, kind="stable")
    sent = arrival_s[order]
    if len(sent) < 2:
        return False
    middle_s, last_s = sent[len(sent) // 2], sent[-1]
    first_s = (end_s[order] - sent)[: max(3, len(sent) // 50)]
    first_s = first_s[np.isfinite(first_s)]
    if len(first_s) and 5.0 * _median(first_s) > last_s - sent[0]:
        return False
    ended = np.sort(end_s[np.isfinite(end_s)])
    before, after = (
        int(np.searchsorted(sent, at_s, side="right") - np.searchsorted(ended, at_s, side="right"))
        for at_s in (middle_s, last_s)
    )
    if max_concurrency is not None and min(before, after) >= max_concurrency:
        return True
    arrived = len(sent) - int(np.searchsorted(sent, middle_s, side="right"))
    return after - before > max(0.04 * arrived, 3.0 * math.sqrt(before + 1.0))


def _median(values: np.ndarray) -> float:
    """`np.median`, which would load the package of masked arrays for it."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1].mean())


def band_summary(scenario: Scenario, *, overloaded: bool = False) -> dict[str, Json] | None:
    """The band as `summary.json` keeps it; a metric's error is its median %, its p90 % and its rows."""
    band = error_band(scenario, overloaded=overloaded)
    if band is None:
        return None
    errors: dict[str, Json] = {metric: list(found) for metric, found in band.errors.items()}
    return {
        "kind": band.kind,
        "exact": band.exact,
        "line": band.line(),
        "errors": errors,
        "command": band.command,
    }


def nearest_band(kind: Kind) -> Band | None:
    """The band of `kind`, or of the nearest wider kind that has enough rows."""
    data = _shipped()
    bands = cast("Mapping[str, Mapping[str, Sequence[float]]]", data["bands"])
    for wider in kind.widened():
        errors = bands.get(str(wider))
        if errors:
            found = {name: (e[0], e[1], int(e[2])) for name, e in errors.items()}
            return Band(str(wider), wider == kind, found, str(data["command"]))
    return None


@cache
def _shipped() -> Mapping[str, object]:
    place = Path(__file__).parents[1] / "evidence" / "validate" / "data" / "bands.json"
    return cast("Mapping[str, object]", json.loads(place.read_text(encoding="utf-8")))
