"""What a validation leaves: its errors in words and as CSV, figures, and the bands shown with predictions."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from sim.evidence.validate.replay import ReplayedRun
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.scoring import (
    METRICS,
    ErrorSummary,
    MetricError,
    errors_by_metric,
    group_by,
    summarize_errors,
)
from sim.figures import plot_latency_cdf
from sim.figures.style import BLUE, blank_figure, save_png, tidy
from sim.results.error_bands import BANDED, Kind

__all__ = ["error_lines", "final_lines", "make_bands", "write_bands", "write_csv", "write_overlays"]

CSV_COLUMNS = (
    *("run_id", "source", "gpu", "engine_version", "quality", "condition", "part"),
    *("metric", "measured", "simulated", "error_percent", "assumed"),
)
#: A kind of run with fewer rows than this says too little to lean on.
ENOUGH_ROWS = 3


def error_lines(replayed: Sequence[ReplayedRun]) -> list[str]:
    """The report: errors by source and GPU, then what was assumed, left out and not simulated."""
    errors = [error for each in replayed for error in each.errors]
    lines = []
    for (source, gpu), group in group_by(errors, lambda e: (e.run.source, e.run.gpu or "")).items():
        lines += [f"{source} on {gpu}", *_table(errors_by_metric(group)), ""]
    parts = group_by(errors, lambda error: (error.part,))
    if len(parts) == 2:
        lines += ["Rows that constants were fitted to, and rows held out", *_parts_table(parts), ""]
    lines += _assumed(replayed)
    lines += _unscored(replayed)
    lines += _failures(replayed)
    return lines


def final_lines(replayed: Sequence[ReplayedRun]) -> list[str]:
    """One line a metric over all rows: `validate: METRIC median E % p90 E % over N rows`."""
    errors = errors_by_metric(error for each in replayed for error in each.errors)
    return [
        f"validate: {name} median {e.median:.1f} % p90 {e.p90:.1f} % over {e.rows} rows"
        for name, e in errors.items()
    ]


def write_csv(path: Path, replayed: Sequence[ReplayedRun]) -> None:
    """One error a line; `part` tells the third that was held out, `assumed` what the run rests on."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for each in replayed:
            run = each.run
            identity = (run.run_id, run.source, run.gpu or "", run.engine_version or "", run.quality)
            assumed = "; ".join([*run.assumed, *each.assumptions])
            for e in each.errors:
                numbers = (f"{e.measured:.6g}", f"{e.simulated:.6g}", f"{e.error_percent:.3f}")
                writer.writerow([*identity, e.condition, e.part, e.metric, *numbers, assumed])


def _table(errors: dict[str, ErrorSummary]) -> list[str]:
    lines = [f"  {'metric':28} rows  median     p90    bias  worst"]
    for name, e in errors.items():
        worst = ", ".join(f"{each.run.run_id} {each.error_percent:+.0f} %" for each in e.worst[:2])
        lines.append(f"  {name:28} {e.rows:4d} {e.median:6.1f} % {e.p90:5.1f} % {e.bias:+6.1f} %  {worst}")
    return lines


def _parts_table(parts: dict[tuple[str, ...], list[MetricError]]) -> list[str]:
    columns = {name[0]: errors_by_metric(group) for name, group in parts.items()}
    lines = ["  " + f"{'metric':28}" + "".join(f"{name:>12}: rows  median     p90" for name in columns)]
    for metric in METRICS:
        cells = [
            f"{e.rows:17d} {e.median:6.1f} % {e.p90:5.1f} %" if (e := found.get(metric)) else " " * 34
            for found in columns.values()
        ]
        if any(cell.strip() for cell in cells):
            lines.append(f"  {metric:28}" + " ".join(cells))
    return lines


def _assumed(replayed: Sequence[ReplayedRun]) -> list[str]:
    ours = Counter(text for each in replayed for text in each.assumptions)
    theirs = Counter(column for each in replayed for column in each.run.assumed)
    lines = [f"  {count:4d} rows: {text}" for text, count in ours.most_common()]
    if theirs:
        listed = ", ".join(f"{column} ({count})" for column, count in theirs.most_common())
        lines.append(f"  columns inferred by the table itself, with their rows: {listed}")
    return ["Assumed", *lines, ""] if lines else []


def _unscored(replayed: Sequence[ReplayedRun]) -> list[str]:
    flagged = Counter(" ".join(sorted(each.run.unscored)) for each in replayed if each.run.unscored)
    lines = [f"  {count:4d} rows: {groups}" for groups, count in flagged.most_common()]
    return ["Not scored, as the table's notes ask", *lines, ""] if lines else []


def _failures(replayed: Sequence[ReplayedRun]) -> list[str]:
    lines = [f"  line {r.run.line}: {r.run.run_id}: {r.reason}" for r in replayed if r.reason]
    return ["Not simulated", *lines, ""] if lines else []


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


# --- figures ------------------------------------------------------------------------------------------------


def write_overlays(replayed: Iterable[ReplayedRun], folder: Path) -> list[Path]:
    """One PNG for each run whose requests were measured one by one: measured solid, simulated dashed.

    Returns the files written.
    """
    written = []
    for each in replayed:
        rows, simulated = each.measured_rows, each.latencies
        if simulated is None or rows is None or rows.ttft_s is None or rows.e2e_s is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{each.run.run_id.replace('/', '-')}.png"
        figure = blank_figure(9.3, 5.0)
        grid = figure.subplots(2, 3)
        tpot_s = np.array([]) if rows.tpot_s is None else rows.tpot_s[np.isfinite(rows.tpot_s)]
        measured = {"ttft": rows.ttft_s, "tpot": tpot_s, "e2e": rows.e2e_s}
        for ax, (metric, real_s) in zip(grid[0], measured.items(), strict=True):
            plot_latency_cdf(simulated[f"{metric}_s"].to_numpy(), tidy(ax), metric=metric, measured=real_s)
        for ax in grid[1, 1:]:
            ax.remove()
        _plot_in_flight(tidy(grid[1, 0]), rows, simulated)
        save_png(figure, path)
        written.append(path)
    return written


def _plot_in_flight(ax: Axes, rows: RequestRows, simulated: pd.DataFrame) -> None:
    """Requests between being sent and their last token, over the run."""
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
