"""Reads a CSV trace of any published form piece by piece, and names each bad cell by its line.

A form is a set of columns, by name, and its quirks. Whole columns of a piece are checked at a time.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import numpy.typing as npt

from sim.errors import did_you_mean
from sim.scenario.section import MAX_REQUEST_TOKENS
from sim.values import Floats, Ints
from sim.workload.table import FaultLog, TraceRows

PIECE_ROWS = 1 << 16
_FIRST_YEAR, _LAST_YEAR = 1900, 2200


def seconds(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Times given as plain numbers of seconds; `ValueError` if one is not."""
    return np.fromiter(map(float, texts), np.float64, len(texts))


def date_times(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Seconds since the epoch of `2023-11-16 18:15:46.6805900`: any number of digits, with or without a zone.

    `ValueError` if one is not a time. Exact to a microsecond.
    """
    plain = [text.removesuffix("Z").removesuffix("+00:00") for text in texts]
    if any("+" in text or "-" in text[10:] for text in plain):  # another zone than UTC: one by one
        zoned = [datetime.fromisoformat(text) for text in texts]
        return np.array([(t if t.tzinfo else t.replace(tzinfo=UTC)).timestamp() for t in zoned])
    years = np.array(plain, "datetime64[Y]").astype(np.int64) + 1970
    if ((years < _FIRST_YEAR) | (years > _LAST_YEAR)).any():  # nanoseconds would wrap around without a word
        raise ValueError("a year beyond the range of times")
    nanoseconds = np.array(plain, "datetime64[ns]")
    if np.isnat(nanoseconds).any():
        raise ValueError("empty time")
    return nanoseconds.astype(np.int64) / 1e9


@dataclass(frozen=True, slots=True)
class CsvForm:
    """One form: the names of its columns, how it writes times, whether zero tokens mean a failed request."""

    name: str
    time: str
    prompt: str
    output: str
    class_: str | None = None
    session: str | None = None
    priority: str | None = None
    parse_times: Callable[[Sequence[str]], npt.NDArray[np.float64]] = seconds
    zero_is_failure: bool = False
    tells_ignored: bool = False

    @property
    def required(self) -> tuple[str, str, str]:
        """The columns without which it cannot be read."""
        return (self.time, self.prompt, self.output)

    @property
    def known(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.required, *filter(None, (self.class_, self.session, self.priority)))


FORMS = {
    form.name: form
    for form in (
        CsvForm("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", parse_times=date_times),
        CsvForm(
            "burstgpt",
            "Timestamp",
            "Request tokens",
            "Response tokens",
            class_="Model",
            session="Session ID",
            zero_is_failure=True,
        ),
        CsvForm(
            "csv",
            "arrival_s",
            "prompt_tokens",
            "output_tokens",
            class_="class",
            session="session",
            priority="priority",
            tells_ignored=True,
        ),
        CsvForm("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    )
}


def likeliest_form(header: Sequence[str]) -> CsvForm | None:
    """The form whose columns the header has, or most nearly has; None if it is like none of them."""

    def likeness(form: CsvForm) -> float:
        exact = sum(column in header for column in form.required)
        return exact + 0.5 * sum(
            bool(did_you_mean(column, header)) for column in form.required if column not in header
        )

    best = max(FORMS.values(), key=likeness)
    return best if likeness(best) >= 1 else None


class CsvTrace:
    """An open CSV trace. Iterate over it for its rows, a piece at a time; faults gather in `log`."""

    def __init__(self, lines: Iterable[str], form_name: str, log: FaultLog) -> None:
        self.log = log
        self.notes: list[str] = []
        self._reader = csv.reader(lines, strict=True)
        self._classes, self._sessions = Labels(), Labels()
        self._first_s: float | None = None
        self._failures = 0
        try:
            self._header = next((row for row in self._reader if row), [])
        except csv.Error as error:
            log.add(self._reader.line_num, None, f"not CSV: {error}")
            log.raise_if_any()
        self.form = self._find_form(form_name)

    def _find_form(self, form_name: str) -> CsvForm | None:
        line, header = self._reader.line_num, [name.strip() for name in self._header]
        self._header = header
        form = likeliest_form(header) if form_name == "auto" else FORMS[form_name]
        if not header:
            self.log.add(1, None, "the file is empty")
        elif form is None:
            known = "; ".join(f"{form.name}: {','.join(form.required)}" for form in FORMS.values())
            self.log.add(line, None, f"no known header ({known}; or JSON lines: mooncake)")
        else:
            for column in form.required:
                if column not in header:
                    near = did_you_mean(column, header)
                    self.log.add(
                        line,
                        column,
                        f"missing column of form {form.name}{near or '; has ' + ','.join(header)}",
                    )
            for column in form.known:
                if header.count(column) > 1:
                    self.log.add(line, column, "the header has this column twice")
            if form.tells_ignored and (ignored := [name for name in header if name not in form.known]):
                self.notes.append(f"columns ignored: {', '.join(ignored)}")
        self.log.raise_if_any()
        return form

    def __iter__(self) -> Iterator[TraceRows]:
        assert self.form is not None
        try:
            while rows := list(islice(self._reader, PIECE_ROWS)):
                yield self._piece(rows, self._reader.line_num - len(rows) + 1, self.form)
        except csv.Error as error:
            self.log.add(self._reader.line_num, None, f"not CSV: {error}")
        if self._failures:
            self.notes.append(
                f"{self._failures:,} failed requests (no prompt or no response tokens) left out"
            )

    def _piece(self, rows: list[list[str]], first_line: int, form: CsvForm) -> TraceRows:
        rows, line = self._full_rows(rows, first_line)
        columns = dict(zip(self._header, zip(*rows, strict=True), strict=True)) if rows else {}
        none = np.full(len(rows), -1, np.int64)
        least = 0 if form.zero_is_failure else 1

        def texts(column: str | None) -> Sequence[str]:
            return columns.get(column or "", ())

        priority = [text.strip() or "0" for text in texts(form.priority)]
        piece = TraceRows(
            line=line,
            time_s=self._times(texts(form.time), line, form),
            prompt_tokens=self._whole(texts(form.prompt), line, form.prompt, least, MAX_REQUEST_TOKENS),
            output_tokens=self._whole(texts(form.output), line, form.output, least, MAX_REQUEST_TOKENS),
            classes=self._classes.number(texts(form.class_)) if texts(form.class_) else none,
            sessions=self._sessions.number(texts(form.session)) if texts(form.session) else none,
            priority=self._whole(priority, line, "priority", -(2**31), 2**31 - 1) if priority else 0 * none,
            class_names=tuple(self._classes.numbers),
        )
        if form.zero_is_failure:
            good = (piece.prompt_tokens > 0) & (piece.output_tokens > 0)
            self._failures += len(good) - int(good.sum())
            piece = piece.take(np.flatnonzero(good))
        return piece

    def _full_rows(self, rows: list[list[str]], first_line: int) -> tuple[list[list[str]], Ints]:
        """The rows that have as many fields as the header, and their lines; blank lines are passed over."""
        line, width = np.arange(first_line, first_line + len(rows)), len(self._header)
        widths = np.fromiter(map(len, rows), np.int64, len(rows))
        if (widths == width).all():
            return rows, line
        ragged = (widths != width) & (widths != 0)
        self.log.add_where(
            ragged, line, None, lambda row: f"{len(rows[row])} fields where the header has {width}"
        )
        kept = np.flatnonzero(widths == width)
        return [rows[index] for index in kept], line[kept]

    def _times(self, texts: Sequence[str], line: Ints, form: CsvForm) -> Floats:
        times_s = self._numbers(texts, line, form.time, form)
        if form.parse_times is seconds:
            self.log.add_where(
                times_s < 0, line, form.time, lambda row: f"must not be negative (got {texts[row]})"
            )
        if self._first_s is None and len(times_s):
            self._first_s = float(times_s[0])
        return times_s - (self._first_s or 0.0)

    def _whole(self, texts: Sequence[str], line: Ints, column: str, low: int, high: int) -> Ints:
        values = self._numbers(texts, line, column)
        whole = np.rint(values)
        self.log.add_where(
            whole != values, line, column, lambda row: f"must be a whole number (got {texts[row]})"
        )
        wrong = (whole == values) & ((whole < low) | (whole > high))
        self.log.add_where(wrong, line, column, lambda row: f"must be {low} to {high} (got {texts[row]})")
        return np.where((whole < low) | (whole > high), 1, whole).astype(np.int64)

    def _numbers(self, texts: Sequence[str], line: Ints, column: str, form: CsvForm | None = None) -> Floats:
        """The column as finite numbers; cells that are none are reported and become 1."""
        parse = form.parse_times if form else seconds
        try:
            values = parse(texts) if texts else np.empty(0)
        except ValueError:
            values = np.array([_parse_one(text, form) for text in texts])
        bad = ~np.isfinite(values)
        kind = "a number" if parse is seconds else "a time"
        self.log.add_where(bad, line, column, lambda row: _not_a(kind, texts[row]))
        return np.where(bad, 1.0, values)


def _not_a(kind: str, text: str) -> str:
    return f"is not {kind} (got {text!r})" if text.strip() else "is empty"


def _parse_one(text: str, form: CsvForm | None) -> float:
    try:
        return float((form.parse_times if form else seconds)([text])[0])
    except ValueError:
        return float("nan")


class Labels:
    """Gives each different text a number, in order of first sight; the empty text has -1."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, texts: Sequence[str]) -> Ints:
        """The number of each text, blanks around it aside."""
        numbers, stripped = self.numbers, map(str.strip, texts)
        return np.array(
            [numbers.setdefault(text, len(numbers)) if text else -1 for text in stripped], np.int64
        )
