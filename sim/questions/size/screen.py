"""What `dryserve size` prints: what each candidate sustains, the fleets, and what binds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING

from sim.questions.size.binding import CLOSE_WORDS
from sim.questions.size.candidates import GPU, TENSOR
from sim.questions.size.conclusion import conclusions
from sim.questions.size.load import unit, warms_up
from sim.questions.size.promise import CLOSE
from sim.questions.sweep.cells import words
from sim.report.text_table import columns_of_text

if TYPE_CHECKING:
    from sim.questions.size.size import Sizing

Record = Mapping[str, object]
MOST_NOTES = 8
HOW_TO_PRICE = (
    "no prices given, so no cost: --prices FILE (.toml or .yaml with a table per_gpu_hour), "
    "--prices h100-sxm=PRICE,…, or --prices example to see the form"
)


def render(sizing: Sizing) -> str:
    """The screen of a sizing; without a final newline."""
    lines = [*_head(sizing), "", *_capacities(sizing), *_cannot(sizing)]
    if sizing.rate_per_s is not None:
        lines += ["", *_fleets(sizing)]
    return "\n".join([*lines, *_binding(sizing), "", *_footer(sizing)])


def _head(sizing: Sizing) -> Iterator[str]:
    what = unit(sizing.base)
    if sizing.rate_per_s is not None:
        question = f"GPUs for {sizing.rate_per_s:g} {what}"
    elif sizing.num_gpus is not None:
        question = f"{what} that {sizing.num_gpus} GPUs sustain"
    else:
        question = f"{what} that one replica sustains"
    yield f"{sizing.base.name}: {question}"
    yield f"promise: {sizing.promise.words()}"


def _capacities(sizing: Sizing) -> Iterator[str]:
    what = unit(sizing.base)
    whole = f"{sizing.num_gpus} GPUs" if sizing.num_gpus is not None else "One replica"
    yield f"{whole} at the highest rate that keeps it:"
    shown = _records(sizing.capacity_table, "rate_per_s")
    if not shown:
        yield "  none: no candidate ran"
        return
    columns: dict[str, list[str]] = _setting_columns(sizing, shown)
    if sizing.num_gpus is not None:
        columns["replicas"] = [_count(row, "replicas") for row in shown]
    columns[what] = [_rate(row) for row in shown]
    columns["per GPU"] = [
        "-" if _get(row, "rate_per_s") == 0.0 else _number(row, "rate_per_s_per_gpu", ".3g") for row in shown
    ]
    columns |= _judged_columns(shown)
    columns["KV tokens/GPU"] = [_number(row, "kv_tokens_per_gpu", ",.0f") for row in shown]
    if any(_get(row, "gpus_per_replica") > 1 for row in shown):
        columns["all-reduce"] = [_number(row, "comm_share", ".0%") for row in shown]
    if sizing.prices is not None:
        columns[f"{sizing.prices.currency}/1M out"] = [
            _number(row, "per_million_output", ".3g") for row in shown
        ]
    columns["breaks next"] = [_breaks(row) for row in shown]
    yield from columns_of_text(columns.items(), left=("GPU", "breaks next"))


def _rate(row: Record) -> str:
    """The highest rate that held; a rate above all that were tried is marked."""
    held, above = _get(row, "rate_per_s"), _get(row, "above_per_s")
    if held == 0.0 and _close(row):
        return f"? (at {above:.3g})"
    if held == 0.0:
        return f"< {above:.3g}" if isfinite(above) else "-"
    return f"{held:.3g} (not {above:.3g})" if isfinite(above) else f">= {held:.3g}"


def _breaks(row: Record) -> str:
    told = row.get("breaks")
    if not isinstance(told, str) or (_close(row) and _get(row, "rate_per_s") == 0.0):
        return str(told or "")
    return told.removesuffix(CLOSE_WORDS)


def _close(row: Record) -> bool:
    """Whether the lowest rate that is not shown to hold is not shown to break either."""
    return str(row.get("breaks")).endswith(CLOSE_WORDS)


def _cannot(sizing: Sizing) -> Iterator[str]:
    for row in _records(sizing.capacity_table, "error"):
        yield f"cannot run: {row['candidate']}: {row['error']}"


def _fleets(sizing: Sizing) -> Iterator[str]:
    assert sizing.rate_per_s is not None
    yield f"Fleets at {sizing.rate_per_s:g} {unit(sizing.base)}, each simulated whole behind one router:"
    table = sizing.fleet_table
    rows = [row for row in _records(table, "candidate") if row["seeds"] != 1 or sizing.replications == 1]
    rows = [row for row in rows if row["role"] or not _has_answer(row, rows)]
    if not rows:
        nothing = all(capacity.error for capacity in sizing.found.values())
        yield f"  none: no candidate {'ran' if nothing else 'is shown to keep the promise at any rate'}"
        return
    columns = _setting_columns(sizing, rows)
    columns["replicas"] = [_count(row, "replicas") for row in rows]
    columns["GPUs"] = [_count(row, "gpus") for row in rows]
    columns |= _judged_columns(rows)
    if sizing.prices is not None:
        money = sizing.prices.currency
        columns[f"{money}/h"] = [_number(row, "cost_per_h", ",.2f") for row in rows]
        columns[f"{money}/1M out"] = [
            _number(row, "per_million_output", ".3g") if row["verdict"] == "met" else "-" for row in rows
        ]
    columns[""] = [_mark(sizing, row) for row in rows]
    yield from columns_of_text(columns.items(), left=("GPU", ""))
    yield from _confirmations(sizing)


def _has_answer(row: Record, rows: Sequence[Record]) -> bool:
    return any(other["role"] == "answer" and other["candidate"] == row["candidate"] for other in rows)


def _mark(sizing: Sizing, row: Record) -> str:
    if row["role"] != "answer":
        return f"fails: {row['fails']}" if row["fails"] else ""
    labels = (("smallest", sizing.smallest), ("cheapest", sizing.cheapest))
    said = [n for n, at in labels if at is not None and sizing.candidates[at].label == row["candidate"]]
    return f"<- {' and '.join(said)}" if said else ""


def _confirmations(sizing: Sizing) -> Iterator[str]:
    """Where the runs of whole fleets and the capacity of one replica disagree."""
    for number, fleet in sizing.fleets.items():
        label = sizing.candidates[number].label
        said = f"{label}: the capacity of one replica says {fleet.arithmetic}"
        if fleet.replicas is None:
            last = max(fleet.tried)
            close = fleet.tried[last].verdict == CLOSE
            failed = f"of {last} it is too close to say" if close else f"not even {last} keep the promise"
            yield f"{said}; {fleet.tried[last].error or failed}"
        elif fleet.replicas > fleet.arithmetic:
            close = fleet.tried[fleet.arithmetic].verdict == CLOSE
            what = "runs of that fleet are too close to say" if close else "the run of that fleet failed"
            yield f"{said}; {what}, so {fleet.replicas - fleet.arithmetic} more"
        elif fleet.replicas < fleet.arithmetic:
            yield f"{said}; {fleet.replicas} together behind the router keep it too"


def _binding(sizing: Sizing) -> Iterator[str]:
    yield ""
    chosen = sizing.answers or sizing.found
    for number in sorted(chosen, key=lambda n: sizing.candidates[n].label):
        if sizing.found[number].error is None:
            yield f"{sizing.candidates[number].label}: {sizing.bound(number)}"
    yield from conclusions(sizing)


def _setting_columns(sizing: Sizing, rows: Sequence[Record]) -> dict[str, list[str]]:
    paths = list(sizing.candidates[0].setting)
    names = {GPU: "GPU", TENSOR: "TP"}
    return {names.get(p, p.rpartition(".")[2]): [words(row[p]) for row in rows] for p in paths}


def _judged_columns(rows: Sequence[Record]) -> dict[str, list[str]]:
    return {
        "attainment (95% CI)": [_share(row) for row in rows],
        "p99 TTFT": [_number(row, "p99_ttft_s", ".3g", " s") for row in rows],
        "p99 TPOT": [_number(row, "p99_tpot_ms", ".3g", " ms") for row in rows],
        "p99 E2E": [_number(row, "p99_e2e_s", ".3g", " s") for row in rows],
        "KV p95": [_number(row, "kv_usage_p95", ".0%") for row in rows],
        "preempt/req": [_number(row, "preemptions_per_request", ".2f") for row in rows],
    }


def _share(row: Record) -> str:
    value, low, high = (100.0 * _get(row, f"attainment{end}") for end in ("", "_low", "_high"))
    if not isfinite(value):
        return "-"
    return f"{value:.2f}% ({low:.2f}-{high:.2f})" if isfinite(low) else f"{value:.2f}%"


def _footer(sizing: Sizing) -> Iterator[str]:
    if sizing.prices is None:
        yield HOW_TO_PRICE
    else:
        yield f"prices: {sizing.prices.source}"
        if sizing.unpriced:
            yield f"{sizing.unpriced}: its cost is left out"
    judged = [each for c in sizing.found.values() for each in (c.kept, c.broken) if each is not None]
    judged += [each for fleet in sizing.fleets.values() for each in fleet.tried.values()]
    summaries = [summary for each in judged for summary in each.summaries]
    if not summaries:
        return
    facts = summaries[0]
    counts = sorted({int(str(summary["num_prompts"])) for summary in summaries})
    sent = f"{counts[0]:,} to {counts[-1]:,}" if counts[0] < counts[-1] else f"{counts[0]:,}"
    calibrations = ", ".join(sorted({str(summary["calibration_id"]) for summary in summaries}))
    most = max(j.seeds for j in judged)
    seeds = f"up to {most} seeds" if most > 1 else "1 seed"
    same = ", the same for all" if len(sizing.found) > 1 else ""
    yield (
        f"mirrors {facts['mirrors']} | {facts['loop']} loop | {seeds} "
        f"from {sizing.base.seed}{same}, {sent} requests each | "
        f"rates to {100.0 * sizing.precision:.3g} % | "
        f"{_warm_up(sizing)} | calibration {calibrations}"
    )
    several = [each for each in judged if each.seeds > 1]
    if sizing.replications == 1:
        yield "note: one seed gives no interval over seeds: how much is left to chance is not known"
    elif several and all(len({_trace_of(s) for s in each.summaries}) <= 1 for each in several):
        yield "note: all seeds gave the same, so there are no intervals: nothing here is left to chance"
    yield from dict.fromkeys(_band(summary) for summary in summaries)
    notes = list(dict.fromkeys(str(n) for s in summaries for n in _listed(s.get("notes"))))
    yield from (f"note: {note}" for note in notes[:MOST_NOTES])
    if len(notes) > MOST_NOTES:
        yield f"note: ... and {len(notes) - MOST_NOTES} more of single runs"


def _warm_up(sizing: Sizing) -> str:
    if sizing.base.warmup_s:
        return f"warm-up {sizing.base.warmup_s:g} s removed"
    return "first tenth removed as warm-up" if warms_up(sizing.base) else "no warm-up removed"


def _trace_of(summary: Record) -> object:
    return summary["mean_e2el_ms"]


def _listed(notes: object) -> Sequence[object]:
    return notes if isinstance(notes, (list, tuple)) else ()


def _band(summary: Record) -> str:
    band = summary.get("error_band")
    if isinstance(band, Mapping):
        return str(band["line"])
    return "no measured run is like this one: the error is not known"


def _records(table: object, column: str) -> list[Record]:
    """Rows in which a column has a value."""
    import pandas as pd

    assert isinstance(table, pd.DataFrame)
    if column not in table:
        return []
    kept = table[table[column].notna()]
    return [{str(key): value for key, value in row.items()} for row in kept.to_dict("records")]


def _number(row: Record, column: str, form: str, after: str = "") -> str:
    value = _get(row, column)
    return f"{value:{form}}{after}" if isfinite(value) else "-"


def _count(row: Record, column: str) -> str:
    return f"{_get(row, column):.0f}"


def _get(row: Record, column: str) -> float:
    value = row.get(column)
    return float(value) if isinstance(value, (int, float)) else nan
