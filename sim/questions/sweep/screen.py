"""What `dryserve sweep` prints: the cells as a table, the answer in sentences, and what to know of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import TYPE_CHECKING

from sim.questions.sweep.answer import MISSED, NO_SLO, Capacity, label, labels
from sim.questions.sweep.costs import PER_HOUR, PER_MILLION, at_capacity
from sim.questions.sweep.measures import number
from sim.questions.sweep.tables import words
from sim.report.screen import THIN

if TYPE_CHECKING:
    import pandas as pd

    from sim.questions.sweep.sweep import Sweep
    from sim.statistics.intervals import Interval

Record = Mapping[str, object]

MOST_ROWS, MOST_FAULTS = 60, 10
MUCH = 0.1
"""A run that spends more than this share after its last arrival says too little about its rate."""


def render(sweep: Sweep) -> str:
    """The screen of a sweep; without a final newline."""
    lines = [*_head(sweep), "", *_table(sweep), *_answer(sweep), *_failures(sweep), *_footer(sweep)]
    return "\n".join(lines)


def _head(sweep: Sweep) -> Iterator[str]:
    size = " x ".join(f"{sweep.summary[path].nunique()} {_short(path)}" for path in sweep.paths)
    counts = sweep.summary["replications"]
    each = f"{counts.max()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    seeds = f"seeds from {sweep.base.seed}" if len(sweep.table) else "no seeds"
    points = "1 point" if len(sweep.cells) == 1 else f"{len(sweep.cells)} points"
    replications = f"{each} replication{'' if each == '1' else 's'} each"
    yield f"{sweep.base.name}: {points}{f' ({size})' if size else ''}, {replications}, {seeds}"
    if sweep.targets:
        targets = ", ".join(f"{key} <= {_duration(t.limit_s)}" for key, t in sweep.targets.items())
        yield f"SLO {targets}"


def _table(sweep: Sweep) -> Iterator[str]:
    """One line a cell: its values, then its numbers."""
    heads = [_short(path) for path in sweep.paths]
    shown = sweep.summary[: MOST_ROWS if len(sweep.summary) > MOST_ROWS else None]
    rows = [[words(row[path]) for path in sweep.paths] for row in _records(shown)]
    for head, cells in _columns(sweep, shown):
        heads.append(head)
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(shown) < len(sweep.summary):
        yield f"... and {len(sweep.summary) - len(shown)} more in points.csv"
    if any(THIN in cell for row in rows for cell in row):
        yield f"{THIN} fewer than 10 samples above in some replication"


def _columns(sweep: Sweep, shown: pd.DataFrame) -> Iterator[tuple[str, list[str]]]:
    rows = _records(shown)
    if sweep.targets:
        yield "attainment (95% CI)", [_share(row, "slo_attainment") for row in rows]
        yield "goodput/s", [_plus_minus(row, "request_goodput") for row in rows]
    else:
        yield "requests/s", [_plus_minus(row, "request_throughput") for row in rows]
    yield "TTFT p50/p90/p99 s", [_latencies(row, "ttft", 1000.0) for row in rows]
    yield "TPOT p50/p90/p99 ms", [_latencies(row, "tpot", 1.0) for row in rows]
    yield "ITL p99 ms", [_latency(row, "p99_itl_ms", 1.0) for row in rows]
    yield "tok/s/GPU", [_number(row, "output_throughput_per_gpu", ".0f") for row in rows]
    if sweep.prices is not None:
        yield f"{sweep.prices.currency}/h", [_number(row, PER_HOUR, ".2f") for row in rows]
        yield f"{sweep.prices.currency}/1M out", [_number(row, PER_MILLION, ".3g") for row in rows]
    yield "KV p95", [_number(row, "kv_usage_p95", ".0%") for row in rows]
    yield "preempt/req", [_number(row, "preemptions_per_request", ".2f") for row in rows]
    if any(verdict != NO_SLO for verdict in shown["verdict"]):
        best = -1 if sweep.best is None or sweep.best.row is None else sweep.best.row
        yield "SLO", [str(row["verdict"]) + (" <- best" if at == best else "") for at, row in enumerate(rows)]


def _answer(sweep: Sweep) -> Iterator[str]:
    if sweep.capacities:
        yield ""
        for found in sweep.capacities:
            said = _capacity(found) + _money(sweep, found)
            yield f"{found.label}: {said}" if found.label else said[0].upper() + said[1:]
    best = sweep.best
    if best is None:
        return
    yield ""
    if best.row is None:
        yield f"Best: {label(best.setting)}: {best.reason}"
        if best.equals > 1:
            yield f"  {best.equals - 1} of {best.of - 1} others are not shown to have a lower one"
    else:
        row = _records(sweep.summary)[best.row]
        what = "goodput" if sweep.targets else "output tok/s/GPU"
        yield f"Best: {label(best.setting)}: {what} {_plus_minus(row, best.measure)}"
        if best.equals > 1:
            of = f"{best.equals} of {best.of} points"
            yield f"  {of} are not shown to have less under the same seeds; this one has the {best.reason}"
    if sweep.flags:
        yield f"  vllm serve {sweep.base.model} {sweep.flags}"


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


def _failures(sweep: Sweep) -> Iterator[str]:
    failed = sweep.failed
    if failed:
        yield ""
        yield f"{len(failed)} of {len(sweep.cells)} points failed:"
        yield from (f"  {name or sweep.base.name}: {why}" for name, why in failed[:MOST_FAULTS])
        if len(failed) > MOST_FAULTS:
            yield f"  ... and {len(failed) - MOST_FAULTS} more in points.csv"
    for cell, told in list(sweep.runs.unreached.items())[:MOST_FAULTS]:
        name = labels(sweep.summary.loc[[cell]], sweep.paths)[0] or sweep.base.name
        yield f"precision not reached: {name}: {told}"


def _footer(sweep: Sweep) -> Iterator[str]:
    facts = sweep.facts
    if not facts:
        return
    yield ""
    warmup_s = facts["warmup_s"]
    warmup = f"warm-up {warmup_s:g} s removed" if warmup_s else "no warm-up removed"
    known = {str(o.summary["calibration_id"]) for each in sweep.runs.outcomes for o in each if o.summary}
    intervals = "95% intervals over replications" if len(_seeds(sweep)) > 1 else "one seed: no intervals"
    yield (
        f"mirrors {facts['mirrors']} | {facts['loop']} loop | {len(_seeds(sweep))} seeds, {intervals} | "
        f"{warmup} | calibration {', '.join(sorted(known))}"
    )
    if sweep.prices is not None:
        yield f"prices: {sweep.prices.source}"
        if sweep.unpriced:
            yield f"{sweep.unpriced}: its cost is left out"
    bands = {_band(o.summary) for each in sweep.runs.outcomes for o in each if o.summary}
    yield from sorted(bands)
    yield from (f"note: {note}" for note in (*sweep.notes, *_draining(sweep), *_notes(sweep)))


def _seeds(sweep: Sweep) -> list[object]:
    return list(sweep.table["seed"].dropna().unique())


def _band(summary: Mapping[str, object]) -> str:
    band = summary.get("error_band")
    told = isinstance(band, Mapping)
    return str(band["line"]) if told else "no measured run is like this one: the error is not known"  # type: ignore[index]


def _draining(sweep: Sweep) -> Iterator[str]:
    """Whether points that keep their SLO spend much of their time after the last arrival: rates count it."""
    worst = 0.0
    for verdict, outcomes in zip(sweep.summary["verdict"], sweep.runs.outcomes, strict=True):
        for facts in (outcome.summary for outcome in outcomes if outcome.summary and verdict != MISSED):
            rate, duration_s = facts["request_rate"], number(facts["duration"])
            if facts["loop"] == "open" and isinstance(rate, float) and duration_s > 0:
                arriving_s = number(facts["num_prompts"]) / rate - number(facts["warmup_s"])
                worst = max(worst, 1.0 - arriving_s / duration_s)
    if worst > MUCH:
        yield (
            f"up to {worst:.0%} of a run comes after the last arrival, and rates such as goodput count it: "
            "runs of more --requests have less of it"
        )


def _notes(sweep: Sweep) -> Iterator[str]:
    seen: dict[str, None] = {}
    for outcomes in sweep.runs.outcomes:
        for outcome in outcomes:
            notes = (outcome.summary or {}).get("notes")
            assert notes is None or isinstance(notes, list)
            seen |= dict.fromkeys(map(str, notes or ()))
    yield from list(seen)[:MOST_FAULTS]
    if len(seen) > MOST_FAULTS:
        yield f"... and {len(seen) - MOST_FAULTS} more of single runs"
    good = sweep.table[sweep.table["error"].isna()]
    if len(_seeds(sweep)) > 1 and len(good) and good["mean_e2el_ms"].notna().all():
        groups = good.groupby(list(sweep.paths), dropna=False) if sweep.paths else [((), good)]
        if all(rows["mean_e2el_ms"].min() == rows["mean_e2el_ms"].max() for _, rows in groups):
            yield "all seeds gave the same, so there are no intervals: nothing here is left to chance"


def _share(row: Record, column: str) -> str:
    value, low, high = (100.0 * _get(row, f"{column}{end}") for end in ("", "_low", "_high"))
    if not isfinite(value):
        return "-"
    digits = 1 if value < 99.0 or value == 100.0 else 2
    said = f"{value:.{digits}f}%"
    return f"{said} ({low:.{digits}f}-{high:.{digits}f})" if isfinite(low) else said


def _plus_minus(row: Record, column: str) -> str:
    value, low = _get(row, column), _get(row, f"{column}_low")
    if not isfinite(value):
        return "-"
    said = f"{value:.3g}" if value < 1000.0 else f"{value:,.0f}"
    return f"{said} ±{value - low:.2g}" if isfinite(low) else said


def _with_ends(found: Interval) -> str:
    ends = f" ({max(0.0, found.low):.3g}-{found.high:.3g})" if isfinite(found.low) else ""
    return f"{found.estimate:.3g}{ends}"


def _latencies(row: Record, metric: str, per: float) -> str:
    return " / ".join(_latency(row, f"{s}_{metric}_ms", per) for s in ("median", "p90", "p99"))


def _latency(row: Record, column: str, per: float) -> str:
    value = _get(row, column) / per
    mark = THIN if column in str(row["thin_percentiles"]).split() else ""
    return (f"{value:.3g}" if value < 1000 else f"{value:.0f}") + mark if isfinite(value) else "-"


def _number(row: Record, column: str, form: str) -> str:
    value = _get(row, column)
    return f"{value:{form}}" if isfinite(value) else "-"


def _records(table: pd.DataFrame) -> list[Record]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _get(row: Record, column: str) -> float:
    value = row.get(column)
    return float(value) if isinstance(value, (int, float)) else nan


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
