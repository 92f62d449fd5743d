"""The answer of a validation: how far off each metric is, and what that rests on.

The errors by kind of run can be kept as the bands that every prediction shows (`sim.results.error_bands`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from sim.evidence.validate.replay import ReplayedRun, Selection, read_measured_runs, replay_all
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.scoring import (
    METRICS,
    ErrorSummary,
    MetricError,
    errors_by_metric,
    group_by,
    summarize_errors,
)
from sim.jobs.options import RunOptions
from sim.report.answer import Answer
from sim.report.document import Block, Bullets, Heading, Plate, Preformatted, Table
from sim.results.error_bands import BANDED, Kind
from sim.values import Json, plain_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Validation", "make_bands", "validate", "write_bands"]

CSV_COLUMNS = (
    *("run_id", "source", "gpu", "engine_version", "quality", "condition", "part"),
    *("metric", "measured", "simulated", "error_percent", "assumed"),
)
#: A kind of run with fewer rows than this says too little to lean on.
ENOUGH_ROWS = 3


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """What the measured runs of a file say of the simulation, with remarks on the reading."""

    kind: ClassVar[str] = "validation"
    owns_folder: ClassVar[bool] = False

    file: Path
    replayed: Sequence[ReplayedRun]
    remarks: Sequence[str] = ()

    @property
    def errors(self) -> list[MetricError]:
        """The errors of all runs."""
        return [error for each in self.replayed for error in each.errors]

    @property
    def num_simulated(self) -> int:
        """How many runs could be simulated."""
        return sum(each.reason is None for each in self.replayed)

    @property
    def question(self) -> str:
        """The file, and how much of it could be simulated."""
        return f"{self.file}: {self.num_simulated} of {len(self.replayed)} runs simulated"

    @property
    def has_failed(self) -> bool:
        """Whether no run at all could be simulated."""
        return not self.num_simulated

    def folder_in(self, root: Path) -> Path:
        """`root` itself."""
        return root

    def tables(self) -> dict[str, pd.DataFrame]:
        """One error a row; `part` tells the third that was held out, `assumed` what the run rests on."""
        import pandas as pd

        rows = []
        for each in self.replayed:
            run = each.run
            identity = (run.run_id, run.source, run.gpu or "", run.engine_version or "", run.quality)
            assumed = "; ".join([*run.assumed, *each.assumptions])
            for e in each.errors:
                numbers = (f"{e.measured:.6g}", f"{e.simulated:.6g}", f"{e.error_percent:.3f}")
                rows.append((*identity, e.condition, e.part, e.metric, *numbers, assumed))
        return {"validation.csv": pd.DataFrame(rows, columns=CSV_COLUMNS)}

    def as_json(self) -> dict[str, Json]:
        """Median, p90 and bias (%) of each metric, and what could not be simulated."""
        errors = {
            name: {"rows": e.rows, "median_percent": e.median, "p90_percent": e.p90, "bias_percent": e.bias}
            for name, e in errors_by_metric(self.errors).items()
        }
        failures = {each.run.run_id: each.reason for each in self.replayed if each.reason}
        counts = {"num_runs": len(self.replayed), "num_simulated": self.num_simulated}
        return cast(
            "dict[str, Json]",
            plain_json({"file": str(self.file), **counts, "errors": errors, "not_simulated": failures}),
        )

    def blocks(self) -> list[Block]:
        """Errors by source and GPU; what was assumed, left out and not simulated; then a line a metric."""
        shown: list[Block] = [Bullets(tuple(self.remarks))] if self.remarks else []
        groups = group_by(self.errors, lambda error: (error.run.source, error.run.gpu or ""))
        for (source, gpu), group in groups.items():
            shown += [Heading(2, f"{source} on {gpu}"), _errors_table(errors_by_metric(group))]
        parts = group_by(self.errors, lambda error: (error.part,))
        if len(parts) == 2:
            shown += [
                Heading(2, "Rows that constants were fitted to, and rows held out"),
                _parts_table({name: errors_by_metric(group) for (name,), group in parts.items()}),
            ]
        ours = Counter(text for each in self.replayed for text in each.assumptions)
        theirs = Counter(column for each in self.replayed for column in each.run.assumed)
        flagged = Counter(" ".join(sorted(each.run.unscored)) for each in self.replayed if each.run.unscored)
        listed = ", ".join(f"{column} ({count})" for column, count in theirs.most_common())
        inferred = [f"columns inferred by the table itself, with their rows: {listed}"] if theirs else []
        failures = [f"line {r.run.line}: {r.run.run_id}: {r.reason}" for r in self.replayed if r.reason]
        for heading, items in (
            ("Assumed", [*_counted(ours), *inferred]),
            ("Not scored, as the table's notes ask", _counted(flagged)),
            ("Not simulated", failures),
        ):
            if items:
                shown += [Heading(2, heading), Preformatted("\n".join(items))]
        lines = self.final_lines()
        return [*shown, Heading(2, "All rows"), Preformatted("\n".join(lines))] if lines else shown

    def final_lines(self) -> list[str]:
        """One line a metric over all rows: `validate: METRIC median E % p90 E % over N rows`."""
        return [
            f"validate: {name} median {e.median:.1f} % p90 {e.p90:.1f} % over {e.rows} rows"
            for name, e in errors_by_metric(self.errors).items()
        ]

    def plates(self) -> list[Plate]:
        """Measured and simulated latencies of each run whose requests were measured one by one."""
        return [
            Plate(
                each.run.run_id.replace("/", "-"),
                f"{each.run.run_id}: measured solid, simulated dashed.",
                partial(_draw_overlay, each.measured_rows, each.latencies),
                (9.3, 5.0),
            )
            for each in self.replayed
            if each.latencies is not None
            and each.measured_rows is not None
            and each.measured_rows.ttft_s is not None
            and each.measured_rows.e2e_s is not None
        ]


def validate(
    path: Path | str,
    selection: Selection | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    limit_requests: int | None = None,
    options: RunOptions | None = None,
) -> Validation:
    """Simulate the measured runs of a run table (.csv) or a load generator's result (.json), and compare.

    `columns` are set-up cells that win over the file's in every run, such as `{"gpu": "h100-sxm"}`, and
    `limit_requests` cuts each run to its first requests. Raises `InputError` for what cannot be read.
    """
    path = Path(path)
    runs, remarks = read_measured_runs(path, selection, columns)
    return Validation(path, replay_all(runs, limit_requests=limit_requests, options=options), remarks)


def _counted(told: Counter[str]) -> list[str]:
    return [f"{count:4d} rows: {text}" for text, count in told.most_common()]


def _errors_table(errors: dict[str, ErrorSummary]) -> Table:
    rows = []
    for name, e in errors.items():
        worst = ", ".join(f"{each.run.run_id} {each.error_percent:+.0f} %" for each in e.worst[:2])
        rows.append((name, f"{e.rows}", f"{e.median:.1f} %", f"{e.p90:.1f} %", f"{e.bias:+.1f} %", worst))
    header = ("metric", "rows", "median", "p90", "bias", "worst")
    return Table(header, tuple(rows), (False, True, True, True, True, False))


def _parts_table(parts: dict[str, dict[str, ErrorSummary]]) -> Table:
    header = ["metric", *(f"{name}: {each}" for name in parts for each in ("rows", "median", "p90"))]
    rows = []
    for metric in METRICS:
        found = [errors.get(metric) for errors in parts.values()]
        cells = [(f"{e.rows}", f"{e.median:.1f} %", f"{e.p90:.1f} %") if e else ("", "", "") for e in found]
        if any(found):
            rows.append((metric, *(cell for three in cells for cell in three)))
    return Table(tuple(header), tuple(rows), (False, *(True for _ in header[1:])))


def _draw_overlay(rows: RequestRows, simulated: pd.DataFrame, figure: Figure) -> None:
    from sim.figures import plot_latency_cdf
    from sim.figures.style import tidy

    grid = figure.subplots(2, 3)
    tpot_s = np.array([]) if rows.tpot_s is None else rows.tpot_s[np.isfinite(rows.tpot_s)]
    measured = {"ttft": rows.ttft_s, "tpot": tpot_s, "e2e": rows.e2e_s}
    for ax, (metric, real_s) in zip(grid[0], measured.items(), strict=True):
        plot_latency_cdf(simulated[f"{metric}_s"].to_numpy(), tidy(ax), metric=metric, measured=real_s)
    for ax in grid[1, 1:]:
        ax.remove()
    _plot_in_flight(tidy(grid[1, 0]), rows, simulated)


def _plot_in_flight(ax: Axes, rows: RequestRows, simulated: pd.DataFrame) -> None:
    """Requests between being sent and their last token, over the run."""
    from sim.figures.style import BLUE

    assert rows.e2e_s is not None
    if rows.arrival_s is None:
        return
    for arrival_s, e2e_s, line, label in (
        (rows.arrival_s, rows.e2e_s, "-", "measured"),
        (simulated["arrival_s"].to_numpy(), simulated["e2e_s"].to_numpy(), "--", "simulated"),
    ):
        at_s = np.concatenate([arrival_s, arrival_s + e2e_s])
        change = np.concatenate([np.ones(len(arrival_s)), -np.ones(len(arrival_s))])
        order = np.argsort(at_s, kind="stable")
        in_flight = np.cumsum(change[order])
        ax.plot(at_s[order], in_flight, line, color=BLUE, lw=0.8, drawstyle="steps-post", label=label)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests in flight")
    ax.set_ylim(bottom=0)
    ax.legend(loc="best")


# --- bands --------------------------------------------------------------------------------------------------


def make_bands(replayed: Iterable[ReplayedRun], command: str) -> dict[str, object]:
    """The content of `data/bands.json`: errors of every kind, and wider kind, that has enough rows.

    V0 engines are left out: no scenario predicts one.
    """
    groups: dict[str, dict[str, list[MetricError]]] = {}
    for each in replayed:
        run = each.run
        if run.engine_gen == "V0":
            continue
        saturated = any(error.metric.startswith("saturated_") for error in each.errors)
        saturated = saturated or run.load in ("closed", "burst")
        kind = Kind.of(run.gpu or "", run.model or "", saturated=saturated)
        if kind is None:
            continue
        for error in each.errors:
            # Below saturation throughput only repeats the rate that was offered: no merit, and no band.
            metric = error.metric.removeprefix("saturated_")
            if metric in BANDED:
                for wider in kind.widened():
                    groups.setdefault(str(wider), {}).setdefault(metric, []).append(error)
    bands = {}
    for name in sorted(groups):
        summaries = {metric: summarize_errors(rows) for metric, rows in sorted(groups[name].items())}
        kept = {
            metric: [round(e.median, 2), round(e.p90, 2), e.rows]
            for metric, e in summaries.items()
            if e.rows >= ENOUGH_ROWS
        }
        if kept:
            bands[name] = kept
    return {"command": command, "columns": ["median %", "p90 %", "rows"], "bands": bands}


def write_bands(path: Path, replayed: Iterable[ReplayedRun], command: str) -> None:
    """Write `make_bands` as JSON, one kind a line."""
    made = make_bands(replayed, command)
    rows = [
        f"  {json.dumps(kind)}: {json.dumps(errors)}"
        for kind, errors in cast("dict[str, object]", made["bands"]).items()
    ]
    head = [f" {json.dumps(name)}: {json.dumps(made[name])}," for name in ("command", "columns")]
    text = "\n".join(["{", *head, ' "bands": {', ",\n".join(rows), " }", "}"])
    path.write_text(text + "\n", encoding="utf-8")
