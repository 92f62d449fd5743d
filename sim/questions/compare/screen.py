"""What `dryserve compare` prints: differences by metric, tables by class, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING

from sim.questions.compare.classes import jain, mean_jain
from sim.questions.compare.differences import (
    EXACT,
    NOT_SHOWN,
    SHOWN,
    SHOWN_ALONE,
    TOO_FEW,
    UNKNOWN,
    strict_level,
)
from sim.questions.sweep.measures import thin_percentiles
from sim.report.screen import THIN
from sim.report.text_table import columns_of_text
from sim.results.metrics import is_thin
from sim.statistics.intervals import LEVEL
from sim.statistics.paired import LEAST_DISTINCT, PairedDifferences, pairs_to_show

if TYPE_CHECKING:
    import pandas as pd

    from sim.questions.compare.compare import Comparison

Record = Mapping[str, object]
ACROSS = 3
"""Variants beside one another; more go below."""
ALONE = "~"
MOST_NOTES = 6


def render(found: Comparison) -> str:
    """The screen of a comparison; without a final newline."""
    lines = [*_head(found)]
    others = found.labels[1:]
    for start in range(0, len(others), ACROSS):
        lines += ["", *_differences(found, others[start : start + ACROSS])]
    lines += [*_classes(found), "", *_verdict(found), *_failures(found), *_footer(found)]
    return "\n".join(lines)


def _head(found: Comparison) -> Iterator[str]:
    yield (
        f"{found.base.name}: {len(found.variants)} variants, {len(found.seeds)} replications each, "
        f"seeds from {found.seeds[0]}, the same arrivals and lengths for all"
    )
    names = found.names
    if list(names.values()) == found.labels:
        yield f"reference: {found.labels[0]}"
    else:
        yield from (f"  {name}  {label}" for label, name in names.items())
        yield "reference: A"


def _differences(found: Comparison, others: Sequence[str]) -> Iterator[str]:
    table = found.table
    if not len(table):
        yield "no run ended well: there is nothing to compare"
        return
    names = found.names
    metrics = list(dict.fromkeys(table["metric"]))
    rows = {(str(row["metric"]), str(row["variant"])): row for row in _records(table)}
    thin = thin_percentiles(o.summary for run in found.runs for o in run if o.summary is not None)
    keys = {str(row["metric"]): str(row["column"]) for row in _records(table)}
    marked = [f"{metric}{THIN}" if keys[metric] in thin else metric for metric in metrics]
    columns = [("", marked), (names[found.labels[0]], [_value(rows[m, found.labels[0]]) for m in metrics])]
    for label in others:
        columns.append((names[label], [_value(rows[m, label]) for m in metrics]))
        columns.append(("change (95% CI)", [_change(rows[m, label]) for m in metrics]))
    yield from columns_of_text(columns, left=("",))
    if marked != metrics:
        yield f"{THIN} fewer than 10 samples above in some replication"


def _value(row: Record) -> str:
    return _short(_get(row, "mean"))


def _short(value: float) -> str:
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _change(row: Record) -> str:
    """The difference in per cent of the reference, with its interval; in its own unit where that is 0."""
    verdict = row["verdict"]
    if verdict == NOT_SHOWN:
        return NOT_SHOWN
    is_relative = isfinite(_get(row, "relative"))
    change = _get(row, "relative" if is_relative else "difference")
    if not isfinite(change) or (verdict == UNKNOWN and not is_relative):
        return "-"
    form = _percents if is_relative else "{:+.3g}".format
    low, high = (_get(row, f"relative_{end}" if is_relative else end) for end in ("low", "high"))
    ends = f"{form(low)} to {form(high)}" if isfinite(low) else row["evidence"]
    return f"{ALONE if verdict == SHOWN_ALONE else ''}{form(change)} ({ends})"


def _percents(share: float) -> str:
    """A change in per cent; what would be rounded to nothing has its first digit."""
    return f"{share:+.1%}" if abs(share) >= 0.0005 or share == 0.0 else f"{100.0 * share:+.1g}%"


def _classes(found: Comparison) -> Iterator[str]:
    table = found.classes
    if not len(table):
        return
    rows, names = _records(table), found.names
    yield ""
    yield "By class of request:"
    columns = {
        "variant": [names[str(row["variant"])] for row in rows],
        "class": [str(row["class"]) for row in rows],
        "requests": [f"{_get(row, 'requests'):.0f}" for row in rows],
        "p50 TTFT s": [_plus_minus(row, "median_ttft_s") for row in rows],
        "p99 TTFT s": [_tail(row, "p99_ttft_s") for row in rows],
        "p99 TPOT ms": [_tail(row, "p99_tpot_ms") for row in rows],
        "attainment": [_percent(row, "attainment") for row in rows],
        "longest wait s": [_plus_minus(row, "max_wait_s") for row in rows],
        "preemptions": [_short(_get(row, "preemptions")) for row in rows],
        "tokens": [_percent(row, "token_share") for row in rows],
        "": ["STARVES" if row["starves"] else "" for row in rows],
    }
    yield from columns_of_text(columns.items(), left=("variant", "class", ""))
    if any(is_thin(int(_get(row, "requests")), 99.0) for row in rows):
        yield f"{THIN} fewer than 10 samples above in each replication"
    if any(row["starves"] for row in rows):
        yield f"STARVES: the longest wait for a first step exceeds {found.starving_s:g} s, mean of the seeds"
    yield from _jain(found)


def _jain(found: Comparison) -> Iterator[str]:
    said, names = [], found.names
    first, is_exact = jain(found.pairs[0]), EXACT in found.verdicts
    for label, run, pairs in zip(found.labels, found.runs, found.pairs, strict=True):
        mean, low, high = mean_jain(run)
        if isfinite(mean):
            ends = f" ({low:.3f}-{high:.3f})" if isfinite(low) else ""
            own = jain(pairs)
            differs = own != first if is_exact else PairedDifferences.of(first, own).shows()
            said.append(f"{names[label]} {mean:.3f}{ends}{' differs' if differs else ''}")
    if said:
        yield f"Jain's index of the classes' speeds (1: all alike): {'; '.join(said)}"


def _verdict(found: Comparison) -> Iterator[str]:
    if not len(found.table):
        return
    verdicts = found.verdicts
    count, seeds = len(verdicts), len(found.pairs[0])
    is_same = found.table["difference"].dropna().eq(0.0).all()
    if seeds < LEAST_DISTINCT and EXACT not in verdicts and not (seeds > 1 and is_same):
        yield (
            f"{'One run' if seeds == 1 else 'Two runs'} each: differences have no intervals, so nothing is "
            f"shown. It takes --replications {LEAST_DISTINCT} or more."
        )
        return
    if verdicts.count(NOT_SHOWN) == count:
        yield f"No difference shown in any of {count} comparisons."
        return
    if EXACT in verdicts:
        yield (
            f"All seeds gave the same, so there are no intervals: nothing here is left to chance. "
            f"{verdicts.count(EXACT)} of {count} comparisons differ."
        )
        return
    shown, alone, few = (verdicts.count(each) for each in (SHOWN, SHOWN_ALONE, TOO_FEW))
    chance = (1.0 - LEVEL) * count
    yield (
        f"{count} comparisons, each at 95 %: about {chance:.1f} would seem to differ by chance alone. "
        f"{shown} differ also with all {count} taken together (Bonferroni)"
        + (f"; {alone}, marked {ALONE}, only by themselves." if alone else ".")
    )
    if few:
        yield (
            f"{few} with fewer than {LEAST_DISTINCT} different values have no interval: "
            f"{pairs_to_show()} seeds that agree show such a difference by itself, "
            f"{pairs_to_show(strict_level(count))} with all {count} taken together."
        )


def _failures(found: Comparison) -> Iterator[str]:
    for label, error in found.failed:
        yield f"failed: {label}: {error}"
    if found.failed:
        yield "seeds with a failed run are left out of all variants"


def _footer(found: Comparison) -> Iterator[str]:
    summaries = [o.summary for run in found.runs for o in run if o.summary is not None]
    if not summaries:
        return
    yield ""
    mirrors = ", ".join(dict.fromkeys(str(s["mirrors"]) for s in summaries))
    loops = ", ".join(dict.fromkeys(str(s["loop"]) for s in summaries))
    calibrations = ", ".join(dict.fromkeys(str(s["calibration_id"]) for s in summaries))
    warmup_s = found.base.warmup_s
    warmup = f"warm-up {warmup_s:g} s removed" if warmup_s else "no warm-up removed"
    yield (
        f"mirrors {mirrors} | {loops} loop | {len(found.seeds)} seeds, paired | 95% intervals | "
        f"{warmup} | calibration {calibrations}"
    )
    yield from dict.fromkeys(_band(summary) for summary in summaries)
    notes = list(dict.fromkeys(str(n) for s in summaries for n in _listed(s.get("notes"))))
    yield from (f"note: {note}" for note in notes[:MOST_NOTES])
    if len(notes) > MOST_NOTES:
        yield f"note: ... and {len(notes) - MOST_NOTES} more of single runs"


def _band(summary: Record) -> str:
    band = summary.get("error_band")
    if isinstance(band, Mapping):
        return str(band["line"])
    return "no measured run is like this one: the error is not known"


def _listed(notes: object) -> Sequence[object]:
    return notes if isinstance(notes, (list, tuple)) else ()


def _plus_minus(row: Record, column: str) -> str:
    value, low = _get(row, column), _get(row, f"{column}_low")
    if not isfinite(value):
        return "-"
    return f"{_short(value)} ±{value - low:.2g}" if isfinite(low) else _short(value)


def _tail(row: Record, column: str) -> str:
    """A p99, marked where a run has few samples above it."""
    return _plus_minus(row, column) + (THIN if is_thin(int(_get(row, "requests")), 99.0) else "")


def _percent(row: Record, column: str) -> str:
    value = 100.0 * _get(row, column)
    return f"{value:.1f}%" if isfinite(value) else "-"


def _records(table: pd.DataFrame) -> list[Record]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _get(row: Record, column: str) -> float:
    value = row.get(column)
    return float(value) if isinstance(value, (int, float)) else nan
