"""The answer of a sweep: its cells as a table, what they come to in sentences, and what to know of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from sim.questions.sweep import pictures
from sim.questions.sweep.cells import label, labels, words
from sim.questions.sweep.findings import MISSED, NO_SLO, Capacity, at_capacity
from sim.questions.sweep.measures import number as number_of
from sim.questions.sweep.results import Results
from sim.questions.sweep.tables import PER_HOUR, PER_MILLION
from sim.report.answer import ScenarioAnswer, records
from sim.report.cells import (
    THIN,
    Row,
    duration,
    error_lines,
    facts_line,
    note_lines,
    number,
    plus_minus,
    rows_of,
    share,
    value,
)
from sim.report.document import Block, Bullets, Paragraph, Plate, Preformatted, table_of_columns
from sim.values import Json, plain_json

if TYPE_CHECKING:
    import pandas as pd

    from sim.statistics.intervals import Interval

MOST_ROWS, MOST_FAULTS = 60, 10
MUCH = 0.1
"""A run that spends more than this share after its last arrival says too little about its rate."""

_PROVENANCE = ("mirrors", "dryserve_version", "calibration_id", "error_band", "loop", "warmup_s", "horizon_s")


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Results, ScenarioAnswer):
    """The answer of a sweep: `Results`, and how they are shown, drawn and written.

    Its folder holds `sweep.json` (what varied, the answer, provenance), `points.csv` (one row a cell, with
    intervals) and `replications.csv` (one row a run).
    """

    kind = "sweep"

    @property
    def question(self) -> str:
        """How many points of what, and how often each was run."""
        size = " x ".join(f"{self.summary[path].nunique()} {_short(path)}" for path in self.paths)
        counts = self.summary["replications"]
        each = f"{counts.max()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        seeds = f"seeds from {self.base.seed}" if len(self.table) else "no seeds"
        points = "1 point" if len(self.cells) == 1 else f"{len(self.cells)} points"
        replications = f"{each} replication{'' if each == '1' else 's'} each"
        return f"{self.base.name}: {points}{f' ({size})' if size else ''}, {replications}, {seeds}"

    def blocks(self) -> Iterator[Block]:
        """The cells, up to which rate promises hold, which cell is best, and what to know of it."""
        if self.targets:
            targets = ", ".join(f"{key} <= {duration(t.limit_s)}" for key, t in self.targets.items())
            yield Paragraph(f"SLO {targets}")
        yield from _table(self)
        yield from _capacities(self)
        yield from _best(self)
        yield from _failures(self)
        if self.summaries:
            yield Bullets(tuple(_footnotes(self)))

    def plates(self) -> Iterator[Plate]:
        """The figures that fit the axes."""
        return pictures.plates(self)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The cells and the runs."""
        return {"points.csv": self.summary, "replications.csv": self.table}

    @property
    def has_failed(self) -> bool:
        """Whether some run failed."""
        return bool(self.failed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A GPU without a price."""
        return (f"{self.unpriced}: its cost is left out",) if self.unpriced else ()

    def asked(self) -> dict[str, Json]:
        """What varied, under which seeds, and the prices."""
        asked = self._varied()
        if self.prices is not None:
            asked |= {"prices": dict(self.prices.per_gpu_hour), "currency": self.prices.currency}
        return asked

    def _varied(self) -> dict[str, Json]:
        """The fields that varied, their values cell by cell, and the seeds."""
        return {
            "paths": list(self.paths),
            "cells": [plain_json(cell.setting) for cell in self.cells],
            "seeds": list(self.seeds),
            "two_stages": self.runs.first_stage is not None,
        }

    def as_json(self) -> dict[str, Json]:
        """The whole sweep but its single runs, as plain data."""
        facts = next(iter(self.summaries), {})
        return {
            **self._varied(),
            "slo": {
                key: {"metric": t.metric, "limit_s": t.limit_s, "percentile": t.percentile}
                for key, t in self.targets.items()
            },
            "capacities": [_capacity_json(found) for found in self.capacities],
            "best": self._best_json(),
            "notes": list(self.notes),
            "prices": None if self.prices is None else dict(self.prices.per_gpu_hour),
            "unreached": {str(cell): told for cell, told in self.runs.unreached.items()},
            "points": records(self.summary),
            "provenance": {key: facts.get(key) for key in _PROVENANCE},
        }

    def _best_json(self) -> Json:
        best = self.best
        if best is None:
            return None
        return {
            "cell": best.row,
            "setting": plain_json(best.setting),
            "by": best.measure,
            "as_good": best.equals,
            "of": best.of,
            "vllm_flags": self.flags,
        }


def _capacity_json(found: Capacity) -> dict[str, Json]:
    def ends(interval: Interval) -> Json:
        return plain_json({"estimate": interval.estimate, "low": interval.low, "high": interval.high})

    return {
        "label": found.label,
        "rate_per_s": ends(found.joint),
        "by_target": {key: ends(one) for key, one in found.by_target.items()},
        "at_least": found.at_least,
        "not_kept_at": found.below,
        "first_to_break": found.first_to_break,
    }


def _table(sweep: Sweep) -> Iterator[Block]:
    """One row a cell: its values, then its numbers."""
    shown = rows_of(sweep.summary[: MOST_ROWS if len(sweep.summary) > MOST_ROWS else None])
    settings = [(_short(path), [words(row[path]) for row in shown]) for path in sweep.paths]
    table = table_of_columns([*settings, *_columns(sweep, shown)])
    yield table
    if len(shown) < len(sweep.summary):
        yield Paragraph(f"... and {len(sweep.summary) - len(shown)} more in points.csv")
    if any(THIN in cell for row in table.rows for cell in row):
        yield Paragraph(f"{THIN} fewer than 10 samples above in some replication")


def _columns(sweep: Sweep, shown: list[Row]) -> Iterator[tuple[str, list[str]]]:
    if sweep.targets:
        yield "attainment (95% CI)", [share(row, "slo_attainment") for row in shown]
        yield "goodput/s", [plus_minus(row, "request_goodput") for row in shown]
    else:
        yield "requests/s", [plus_minus(row, "request_throughput") for row in shown]
    yield "TTFT p50/p90/p99 s", [_latencies(row, "ttft", 1000.0) for row in shown]
    yield "TPOT p50/p90/p99 ms", [_latencies(row, "tpot", 1.0) for row in shown]
    yield "ITL p99 ms", [_latency(row, "p99_itl_ms", 1.0) for row in shown]
    yield "tok/s/GPU", [number(row, "output_throughput_per_gpu", ".0f") for row in shown]
    if sweep.prices is not None:
        yield f"{sweep.prices.currency}/h", [number(row, PER_HOUR, ".2f") for row in shown]
        yield f"{sweep.prices.currency}/1M out", [number(row, PER_MILLION, ".3g") for row in shown]
    yield "KV p95", [number(row, "kv_usage_p95", ".0%") for row in shown]
    yield "preempt/req", [number(row, "preemptions_per_request", ".2f") for row in shown]
    if any(row["verdict"] != NO_SLO for row in shown):
        best = -1 if sweep.best is None or sweep.best.row is None else sweep.best.row
        marks = (" <- best" if at == best else "" for at in range(len(shown)))
        yield "SLO", [f"{row['verdict']}{mark}" for row, mark in zip(shown, marks, strict=True)]


def _capacities(sweep: Sweep) -> Iterator[Block]:
    said = [_capacity(found) + _money(sweep, found) for found in sweep.capacities]
    if len(said) == 1 and not sweep.capacities[0].label:
        yield Paragraph(said[0][0].upper() + said[0][1:])
    elif said:
        names = (found.label for found in sweep.capacities)
        yield Bullets(tuple(f"{name}: {each}" for name, each in zip(names, said, strict=True)))


def _capacity(found: Capacity) -> str:
    if found.at_least:
        return f"every target is met at every rate, up to {found.joint.estimate:g} req/s"
    if found.joint.estimate == 0.0:
        return f"not every target is met even at {found.below:g} req/s ({found.first_to_break} breaks first)"
    each = ", ".join(f"{key} to {one.estimate:.3g}" for key, one in found.by_target.items())
    breaks = f"{found.first_to_break} breaks first" if len(found.by_target) > 1 else ""
    alone = f" ({each}: {breaks})" if breaks else ""
    low = f"; some replications miss them at {found.below:g}" if found.below is not None else ""
    lower, upper = found.tried
    between = f", on a line between {lower:g} and {upper:g}" if upper > 1.25 * lower else ""
    return f"every target is met up to {_with_ends(found.joint)} req/s{between}{alone}{low}"


def _money(sweep: Sweep, found: Capacity) -> str:
    """What the highest rate within the targets costs; nothing without prices."""
    if sweep.prices is None:
        return ""
    rate, hourly, per_million = at_capacity(sweep.summary, found)
    if not isfinite(per_million):
        return ""
    currency = sweep.prices.currency
    return f"; at {rate:g} req/s {per_million:.3g} {currency} for 1M output tokens, {hourly:.3g} {currency}/h"


def _best(sweep: Sweep) -> Iterator[Block]:
    best = sweep.best
    if best is None:
        return
    if best.row is None:
        said = f"Best: {label(best.setting)}: {best.reason}"
        equals = f"{best.equals - 1} of {best.of - 1} others are not shown to have a lower one"
    else:
        what = "goodput" if sweep.targets else "output tok/s/GPU"
        row = rows_of(sweep.summary)[best.row]
        said = f"Best: {label(best.setting)}: {what} {plus_minus(row, best.measure)}"
        equals = (
            f"{best.equals} of {best.of} points are not shown to have less under the same seeds; this one "
            f"has the {best.reason}"
        )
    yield Paragraph(f"**{said}**")
    if best.equals > 1:
        yield Paragraph(equals)
    if sweep.flags:
        yield Preformatted(f"  vllm serve {sweep.base.model} {sweep.flags}")


def _failures(sweep: Sweep) -> Iterator[Block]:
    failed = sweep.failed
    if failed:
        yield Paragraph(f"{len(failed)} of {len(sweep.cells)} points failed:")
        more = len(failed) - MOST_FAULTS
        told = [f"{name or sweep.base.name}: {why}" for name, why in failed[:MOST_FAULTS]]
        yield Bullets((*told, *([f"... and {more} more in points.csv"] if more > 0 else [])))
    unreached = []
    for cell, why in list(sweep.runs.unreached.items())[:MOST_FAULTS]:
        name = labels(sweep.summary.loc[[cell]], sweep.paths)[0] or sweep.base.name
        unreached.append(f"precision not reached: {name}: {why}")
    if unreached:
        yield Bullets(tuple(unreached))


def _footnotes(sweep: Sweep) -> Iterator[str]:
    count = len(sweep.seeds)
    intervals = "95% intervals over replications" if count > 1 else "one seed: no intervals"
    yield facts_line(sweep.summaries, f"{count} seeds, {intervals}")
    if sweep.prices is not None:
        yield f"prices: {sweep.prices.source}"
        if sweep.unpriced:
            yield f"{sweep.unpriced}: its cost is left out"
    yield from error_lines(sweep.summaries)
    yield from note_lines(sweep.summaries, [*sweep.notes, *_draining(sweep), *_no_chance(sweep)])


def _draining(sweep: Sweep) -> Iterator[str]:
    """Whether points that keep their SLO spend much of their time after the last arrival: rates count it."""
    worst = 0.0
    for verdict, outcomes in zip(sweep.summary["verdict"], sweep.runs.outcomes, strict=True):
        for facts in (outcome.summary for outcome in outcomes if outcome.summary and verdict != MISSED):
            rate, duration_s = facts["request_rate"], number_of(facts["duration"])
            if facts["loop"] == "open" and isinstance(rate, float) and duration_s > 0:
                arriving_s = number_of(facts["num_prompts"]) / rate - number_of(facts["warmup_s"])
                worst = max(worst, 1.0 - arriving_s / duration_s)
    if worst > MUCH:
        yield (
            f"up to {worst:.0%} of a run comes after the last arrival, and rates such as goodput count it: "
            "runs of more --requests have less of it"
        )


def _no_chance(sweep: Sweep) -> Iterator[str]:
    """Whether every seed gave the same, so that intervals say nothing."""
    good = sweep.table[sweep.table["error"].isna()]
    if len(sweep.seeds) > 1 and len(good) and good["mean_e2el_ms"].notna().all():
        groups = good.groupby(list(sweep.paths), dropna=False) if sweep.paths else [((), good)]
        if all(rows["mean_e2el_ms"].min() == rows["mean_e2el_ms"].max() for _, rows in groups):
            yield "all seeds gave the same, so there are no intervals: nothing here is left to chance"


def _with_ends(found: Interval) -> str:
    ends = f" ({max(0.0, found.low):.3g}-{found.high:.3g})" if isfinite(found.low) else ""
    return f"{found.estimate:.3g}{ends}"


def _latencies(row: Row, metric: str, per: float) -> str:
    return " / ".join(_latency(row, f"{s}_{metric}_ms", per) for s in ("median", "p90", "p99"))


def _latency(row: Row, column: str, per: float) -> str:
    found = value(row, column) / per
    mark = THIN if column in str(row["thin_percentiles"]).split() else ""
    return (f"{found:.3g}" if found < 1000 else f"{found:.0f}") + mark if isfinite(found) else "-"


def _short(path: str) -> str:
    return path.rpartition(".")[2]
