"""What a recording says of its machine: measured and predicted step times, and the constants it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import numpy as np

from cost_models import Calibration
from cost_models.machine import GAINS, Machine
from sim.evidence.own_machine.document import calibration_document
from sim.evidence.own_machine.fit import Estimate
from sim.evidence.own_machine.steps import TimedStep, kind_order, seconds_of
from sim.recordings import Recording
from sim.report.answer import Answer
from sim.report.document import Block, Bullets, Heading, Paragraph, Plate, Table, drawing
from sim.scenario import Scenario
from sim.values import Floats, Json, plain_json

if TYPE_CHECKING:
    import pandas as pd

MEANINGS = {
    "step_host_s": "host time of each step",
    "step_gap_s": "host time of each step that no GPU work hides",
    "request_host_s": "host time of each request in a step",
    "memory_gain": "speed of memory, relative to the calibration",
    "compute_gain": "speed of arithmetic, relative to the calibration",
    "all_reduce_gain": "speed of all-reduces, relative to the calibration",
}


class Constant(NamedTuple):
    """A constant: what it was, and its estimate, or why it was left as it was."""

    name: str
    shipped: float
    estimate: Estimate | None
    reason: str


class KindErrors(NamedTuple):
    """Held-out steps of one kind: how many, median times in s, and errors before and after the fit in %."""

    kind: str
    steps: int
    measured_s: float
    before_s: float
    after_s: float
    before_median: float
    before_p90: float
    after_median: float
    after_p90: float
    after_bias: float


@dataclass(frozen=True, repr=False)
class OwnMachine(Answer):
    """What one machine has of its own, and what that is worth on minutes that were held out.

    before_s, after_s: predictions of the `held_out` steps with the constants as they were, and as fitted.
    num_outliers: fitted steps so far off that they had no weight. num_stretches: stretches of time that the
    intervals rest on.
    """

    kind: ClassVar[str] = "machine"
    root: ClassVar[str] = "runs/calibrate"

    recordings: Sequence[Recording]
    scenario: Scenario
    base: Calibration
    machine: Machine
    constants: Sequence[Constant]
    held_out: Sequence[TimedStep]
    before_s: Floats
    after_s: Floats
    num_fitted: int
    num_outliers: int
    num_stretches: int
    converged: bool
    date: str

    @property
    def question(self) -> str:
        """The recordings, the engine and what was fitted."""
        names = ", ".join(recording.path.name for recording in self.recordings)
        engine = self.scenario.engine
        split = f", tensor parallel {engine.tensor_parallel_size}" if engine.tensor_parallel_size > 1 else ""
        return f"{names}: {self.scenario.model} on {self.base.gpu}{split}, vLLM {engine.version}"

    @property
    def fitted(self) -> list[Constant]:
        """The constants that the machine has shown."""
        return [constant for constant in self.constants if constant.estimate is not None]

    @property
    def has_failed(self) -> bool:
        """Whether nothing could be fitted."""
        return not self.fitted

    @property
    def warnings(self) -> Sequence[str]:
        """What was left as it was, and a fit that did not settle."""
        left = [f"{each.name} left as it was: {each.reason}" for each in self.constants if each.reason]
        return left if self.converged else [*left, "the fit stopped before it settled"]

    def folder_in(self, root: Path) -> Path:
        """`root`/<name of the first recording>."""
        name = self.recordings[0].path.name
        return root / name.partition(".")[0]

    def errors(self) -> list[KindErrors]:
        """Errors on held-out steps by kind, and over all of them at last."""
        kinds = np.array([step.kind for step in self.held_out])
        measured_s = seconds_of(self.held_out)
        names = sorted(dict.fromkeys(kinds.tolist()), key=kind_order)
        rows = [self._errors_of(name, measured_s, kinds == name) for name in names]
        if len(measured_s):
            rows.append(self._errors_of("all steps", measured_s, np.ones(len(measured_s), dtype=np.bool_)))
        return rows

    def _errors_of(self, kind: str, measured_s: Floats, mask: np.ndarray) -> KindErrors:
        measured = measured_s[mask]
        before, after = (100.0 * (each[mask] / measured - 1.0) for each in (self.before_s, self.after_s))
        return KindErrors(
            kind,
            len(measured),
            float(np.median(measured)),
            float(np.median(self.before_s[mask])),
            float(np.median(self.after_s[mask])),
            float(np.median(np.abs(before))),
            float(np.percentile(np.abs(before), 90)),
            float(np.median(np.abs(after))),
            float(np.percentile(np.abs(after), 90)),
            float(np.median(after)),
        )

    def blocks(self) -> Iterable[Block]:
        """The constants, the errors on held-out steps, and what was left out."""
        minutes = "every other minute" if self._minutes >= 6 else "every other sixth of the time"
        told = (
            f"{self.num_fitted:,} steps of {minutes} to fit to, {len(self.held_out):,} between them held out."
        )
        if self.fitted:
            told += (
                f" {self.num_outliers:,} fitted steps were too far off to count. Intervals are of 95 % and "
                f"rest on {self.num_stretches} stretches of time: they tell noise, not what the model's form "
                "leaves out."
            )
        yield Paragraph(told)
        header = ("constant", "", "before", "fitted", "95 % interval")
        rows = [self._constant_row(constant) for constant in self.constants]
        yield Table(header, tuple(rows), (False, False, True, True, True))
        if left := [f"{each.name} left as it was: {each.reason}" for each in self.constants if each.reason]:
            yield Bullets(tuple(left))
        if not self.converged:
            yield Paragraph("The fit stopped before it settled.")
        yield Heading(2, "Measured and predicted times of held-out steps")
        columns = ("step", "steps", "measured", "before", "fitted")
        errors = ("error before: median", "p90", "fitted: median", "p90", "bias")
        shown = [
            (
                e.kind,
                f"{e.steps:,}",
                *(f"{1e3 * s:.2f} ms" for s in (e.measured_s, e.before_s, e.after_s)),
                *(f"{p:.1f} %" for p in (e.before_median, e.before_p90, e.after_median, e.after_p90)),
                f"{e.after_bias:+.1f} %",
            )
            for e in self.errors()
        ]
        right = (False, *(True for _ in (*columns, *errors)))
        yield Table((*columns, *errors), tuple(shown), right[: len(columns) + len(errors)])

    @property
    def _minutes(self) -> float:
        ends = [step.begin_s for step in self.held_out]
        return (max(ends) - min(ends)) / 60.0 if ends else 0.0

    def _constant_row(self, constant: Constant) -> tuple[str, str, str, str, str]:
        name, meaning = constant.name, MEANINGS[constant.name]
        before, estimate = _shown(name, constant.shipped), constant.estimate
        if estimate is None:
            return name, meaning, before, "as before", ""
        interval = f"{_shown(name, estimate.low)} to {_shown(name, estimate.high)}"
        return name, meaning, before, _shown(name, estimate.value), interval

    def as_json(self) -> dict[str, Json]:
        """Constants with intervals or reasons, and errors on held-out steps by kind."""
        constants = {
            each.name: {
                "before": each.shipped,
                "fitted": each.estimate and each.estimate.value,
                "low": each.estimate and each.estimate.low,
                "high": each.estimate and each.estimate.high,
                "left_because": each.reason or None,
            }
            for each in self.constants
        }
        facts = {
            "recordings": [str(recording.path) for recording in self.recordings],
            "model": self.scenario.model,
            "gpu": self.base.gpu,
            "engine_version": self.scenario.engine.version,
            "fitted_steps": self.num_fitted,
            "held_out_steps": len(self.held_out),
            "outliers": self.num_outliers,
            "constants": constants,
            "held_out_errors": [row._asdict() for row in self.errors()],
        }
        return cast("dict[str, Json]", plain_json(facts))

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Errors by kind of step; the constants; each held-out step."""
        import pandas as pd

        errors = pd.DataFrame(self.errors(), columns=KindErrors._fields)
        constants = pd.DataFrame(
            [
                (
                    each.name,
                    each.shipped,
                    *((e.value, e.low, e.high) if (e := each.estimate) else (None, None, None)),
                    each.reason,
                )
                for each in self.constants
            ],
            columns=("constant", "before", "fitted", "low", "high", "left_because"),
        )
        return {
            "step_kinds.csv": errors,
            "constants.csv": constants,
            "held_out_steps.csv": self.step_table(),
        }

    def step_table(self) -> pd.DataFrame:
        """Each held-out step: when, its kind, its time measured and predicted, in s."""
        import pandas as pd

        return pd.DataFrame(
            {
                "at_s": [step.begin_s for step in self.held_out],
                "kind": [step.kind for step in self.held_out],
                "num_requests": [step.shape.num_requests for step in self.held_out],
                "num_tokens": [step.shape.num_tokens for step in self.held_out],
                "measured_s": seconds_of(self.held_out),
                "before_s": self.before_s,
                "after_s": self.after_s,
            }
        )

    def plates(self) -> Iterable[Plate]:
        """Measured and predicted times."""
        if self.held_out:
            shows = (
                "Measured against predicted times of the held-out steps, by kind, with the constants as they "
                "were and as fitted."
            )
            yield Plate("step_times", shows, drawing("step_times", self.step_table()), (7.0, 3.6))

    def calibration(self) -> dict[str, object]:
        """The calibration file: the operators as they were, and the constants of the machine."""
        return calibration_document(
            self.base,
            self.machine,
            source=f"recording of {self.question}; operators: {self.base.calibration_id}",
            date=self.date,
            intervals={c.name: (c.estimate.low, c.estimate.high) for c in self.fitted if c.estimate},
            left={c.name: c.reason for c in self.constants if c.reason},
            residuals=[(e.kind, e.steps, e.after_median, e.after_p90, e.after_bias) for e in self.errors()],
        )


def _shown(name: str, value: float) -> str:
    if name in GAINS:
        return f"{value:.3f}"
    return f"{1e6 * value:.2f} µs" if name == "request_host_s" else f"{1e3 * value:.3f} ms"
