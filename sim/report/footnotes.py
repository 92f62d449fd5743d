"""What every answer carries, from the summaries of its runs: release, loop, seeds, warm-up, calibration, the
error that is known of such runs, and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
