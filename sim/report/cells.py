"""Numbers of tables as people read them, one form for each kind, `-` where there is no number; and the
footnotes that every answer carries: release, loop, seeds, warm-up, calibration, the known error, and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


Row = Mapping[str, object]

NONE = "-"
THIN = "°"
"""Marks a percentile with fewer than ten samples above it."""


def rows_of(table: pd.DataFrame) -> list[Row]:
    """The rows of a table, each by column."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def value(row: Row, column: str) -> float:
    """The number in a column; NaN if there is none."""
    found = row.get(column)
    return float(found) if isinstance(found, (int, float)) else nan


def number(row: Row, column: str, form: str, unit: str = "") -> str:
    """A number in the form given, such as `.3g`, with its unit after it."""
    found = value(row, column)
    return f"{found:{form}}{unit}" if isfinite(found) else NONE


def share(row: Row, column: str, digits: int | None = None) -> str:
    """A share (0..1) in per cent with its interval (`<column>_low`, `_high`) if it has one.

    Without `digits` shares near 100 % get two decimals and others one.
    """
    found, low, high = (100.0 * value(row, f"{column}{end}") for end in ("", "_low", "_high"))
    if not isfinite(found):
        return NONE
    if digits is None:
        digits = 1 if found < 99.0 or found == 100.0 else 2
    shown = f"{found:.{digits}f}%"
    return f"{shown} ({low:.{digits}f}-{high:.{digits}f})" if isfinite(low) else shown


def plus_minus(row: Row, column: str) -> str:
    """A number with three digits, and half the width of its interval (`<column>_low`) if it has one."""
    found, low = value(row, column), value(row, f"{column}_low")
    if not isfinite(found):
        return NONE
    shown = three_digits(found)
    return f"{shown} ±{found - low:.2g}" if isfinite(low) else shown


def three_digits(found: float) -> str:
    """A number with three digits, thousands in full; `-` for one that is not finite."""
    if not isfinite(found):
        return NONE
    return f"{found:.3g}" if abs(found) < 1000.0 else f"{found:,.0f}"


def duration(seconds: float) -> str:
    """A limit as a user writes it: `1.5 s`, `40 ms`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


Summary = Mapping[str, object]

MOST_NOTES = 10


def facts_line(summaries: Sequence[Summary], seeds: str, warm_up: str | None = None) -> str:
    """Release, loop, seeds, warm-up and calibration in one line, each with all its values.

    `seeds` says how many there are, and more if need be; `warm_up` says what was left out where that is not
    the `warmup_s` of the first summary.
    """
    parts = (
        f"mirrors {_all(summaries, 'mirrors')}",
        f"{_all(summaries, 'loop')} loop",
        seeds,
        warm_up or warm_up_words(summaries[0]["warmup_s"]),
        f"calibration {_all(summaries, 'calibration_id')}",
    )
    return " | ".join(parts)


def warm_up_words(warmup_s: object) -> str:
    """What was left out of the results of the time before `warmup_s`."""
    return f"warm-up {warmup_s:g} s removed" if warmup_s else "no warm-up removed"


def error_lines(summaries: Iterable[Summary]) -> list[str]:
    """How far off validation found such runs to be, a line for each kind of run."""
    return list(dict.fromkeys(map(_error_line, summaries)))


def note_lines(
    summaries: Iterable[Summary], first: Iterable[str] = (), *, most: int | None = MOST_NOTES
) -> list[str]:
    """The notes of all runs, each once, after those in `first`; of many the first ones, and how many more."""
    notes = list(dict.fromkeys(str(note) for summary in summaries for note in _notes(summary)))
    more = len(notes) - len(notes[:most])
    shown = [*first, *notes[:most], *([f"... and {more} more of single runs"] if more else [])]
    return [f"note: {note}" for note in shown]


def _all(summaries: Sequence[Summary], key: str) -> str:
    return ", ".join(dict.fromkeys(str(summary[key]) for summary in summaries))


def _error_line(summary: Summary) -> str:
    band = summary.get("error_band")
    if isinstance(band, Mapping):
        return str(band["line"])
    return "no measured run is like this one: the error is not known"


def _notes(summary: Summary) -> Sequence[object]:
    notes = summary.get("notes")
    return notes if isinstance(notes, (list, tuple)) else ()
