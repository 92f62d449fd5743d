"""User mistakes: every fault found, each with its place, carried by the one exception the CLI prints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake: where it stands (`file:line:col`, or the option), which field, and what is wrong."""

    where: str | None
    path: str | None
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class InputError(ValueError):
    """A scenario, a trace or an option that cannot be used, and all its faults; `str` is one line a fault."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[type[InputError], tuple[list[Fault]]]:
        return (InputError, (self.faults,))


def input_error(message: str, *, where: str | None = None, path: str | None = None) -> InputError:
    """An `InputError` of a single fault."""
    return InputError([Fault(where, path, message)])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, or nothing when none is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""


def os_reason(error: OSError) -> str:
    """Why the operating system refused something, such as `no space left on device`."""
    return (error.strerror or (os.strerror(error.errno) if error.errno else str(error))).lower()


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn an OSError into an `InputError` that says that `path` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise input_error(f"cannot be written: {os_reason(error)}", where=str(path)) from None
