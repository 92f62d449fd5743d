"""The CSV forms in which traces are published: their columns, by name, and their quirks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from sim.errors import did_you_mean

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
