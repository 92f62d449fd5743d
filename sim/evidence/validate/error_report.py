"""The answer of `dryserve validate` in words: errors by source, GPU and metric, and what they rest on."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sim.evidence.validate.replay import Outcome
from sim.evidence.validate.scoring import THROUGHPUT, Comparison, ErrorSummary, group_by, summarize_errors

__all__ = ["METRICS", "error_lines", "final_lines", "metric_errors", "write_csv"]

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Every metric, in the order of reports.
METRICS = (
    *(f"saturated_{name}" for name in THROUGHPUT),
    *(f"open_loop_{name}" for name in THROUGHPUT),
    *(f"{metric}_{stat}" for metric in ("ttft", "tpot", "itl", "e2e") for stat in _STATISTICS),
)

CSV_COLUMNS = (
    *("run_id", "source", "gpu", "engine_version", "quality", "condition", "part"),
    *("metric", "measured", "simulated", "error_percent", "assumed"),
)


def metric_errors(comparisons: Iterable[Comparison]) -> dict[str, ErrorSummary]:
    """The errors of each metric that has any, in the order of `METRICS`."""
    groups = group_by(comparisons, lambda c: (c.metric,))
    return {name: summarize_errors(groups[(name,)]) for name in METRICS if (name,) in groups}


def error_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The report: errors by source and GPU, then what was assumed, left out and not simulated."""
    comparisons = [c for outcome in outcomes for c in outcome.comparisons]
    lines = []
    for (source, gpu), group in group_by(comparisons, lambda c: (c.source, c.gpu)).items():
        lines += [f"{source} on {gpu}", *_table(metric_errors(group)), ""]
    parts = group_by(comparisons, lambda c: (_part(c),))
    if len(parts) == 2:
        lines += ["Rows that constants were fitted to, and rows held out", *_parts_table(parts), ""]
    lines += _assumed(outcomes)
    lines += _unscored(outcomes)
    lines += _failures(outcomes)
    return lines


def final_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """One line a metric over all rows: `validate: METRIC median E % p90 E % over N rows`."""
    errors = metric_errors(c for outcome in outcomes for c in outcome.comparisons)
    return [
        f"validate: {name} median {e.median:.1f} % p90 {e.p90:.1f} % over {e.rows} rows"
        for name, e in errors.items()
    ]


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    """One comparison a line; `part` tells the third that was held out, `assumed` what the run rests on."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for outcome in outcomes:
            assumed = "; ".join([*outcome.run.assumed, *outcome.assumptions])
            for c in outcome.comparisons:
                numbers = (f"{c.measured:.6g}", f"{c.simulated:.6g}", f"{c.error_percent:.3f}")
                identity = (c.run_id, c.source, c.gpu, c.engine_version, c.quality, c.condition)
                writer.writerow([*identity, _part(c), c.metric, *numbers, assumed])


def _part(comparison: Comparison) -> str:
    return "held out" if comparison.held_out else "fitted"


def _table(errors: dict[str, ErrorSummary]) -> list[str]:
    lines = [f"  {'metric':28} rows  median     p90    bias  worst"]
    for name, e in errors.items():
        worst = ", ".join(f"{c.run_id} {c.error_percent:+.0f} %" for c in e.worst[:2])
        lines.append(f"  {name:28} {e.rows:4d} {e.median:6.1f} % {e.p90:5.1f} % {e.bias:+6.1f} %  {worst}")
    return lines


def _parts_table(parts: dict[tuple[str, ...], list[Comparison]]) -> list[str]:
    columns = {name[0]: metric_errors(group) for name, group in parts.items()}
    lines = ["  " + f"{'metric':28}" + "".join(f"{name:>12}: rows  median     p90" for name in columns)]
    for metric in METRICS:
        cells = [
            f"{e.rows:17d} {e.median:6.1f} % {e.p90:5.1f} %" if (e := found.get(metric)) else " " * 34
            for found in columns.values()
        ]
        if any(cell.strip() for cell in cells):
            lines.append(f"  {metric:28}" + " ".join(cells))
    return lines


def _assumed(outcomes: Sequence[Outcome]) -> list[str]:
    ours = Counter(text for outcome in outcomes for text in outcome.assumptions)
    theirs = Counter(column for outcome in outcomes for column in outcome.run.assumed)
    lines = [f"  {count:4d} rows: {text}" for text, count in ours.most_common()]
    if theirs:
        listed = ", ".join(f"{column} ({count})" for column, count in theirs.most_common())
        lines.append(f"  columns inferred by the table itself, with their rows: {listed}")
    return ["Assumed", *lines, ""] if lines else []


def _unscored(outcomes: Sequence[Outcome]) -> list[str]:
    flagged = Counter(" ".join(sorted(o.run.unscored)) for o in outcomes if o.run.unscored)
    lines = [f"  {count:4d} rows: {groups}" for groups, count in flagged.most_common()]
    return ["Not scored, as the table's notes ask", *lines, ""] if lines else []


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [f"  line {o.run.line}: {o.run.run_id}: {o.reason}" for o in outcomes if o.reason]
    return ["Not simulated", *lines, ""] if lines else []
