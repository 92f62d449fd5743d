"""Reads tables of facts, checks their fields, and resolves the names people use to names of the tables."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from cost_models.errors import SpecError, UnknownNameError


class Fields:
    """Typed values of a table that somebody wrote.

    A value that is missing or of the wrong type is noted in `faults`, and something harmless stands in for it
    until `check` raises them all.
    """

    def __init__(self, values: Mapping[str, object], where: str, faults: list[str] | None = None) -> None:
        """`where` names the table in errors."""
        self.values = values
        self.where = where
        self.faults: list[str] = [] if faults is None else faults

    def check(self) -> None:
        """Raise SpecError with all faults so far, if there are any."""
        if self.faults:
            raise SpecError(self.where, self.faults)

    def whole(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """The whole number, not below `least`, under the first of `names` that is there; without a default,
        one of them must be.
        """
        value = self._first(names, default)
        if value is None:
            return least
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wanted = "a positive whole number" if least == 1 else f"a whole number from {least} on"
            self.faults.append(f"{self._given(names)} must be {wanted}, not {value!r}")
            return least
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """The number under `name`; without a default it must be there."""
        return self._float(name, self._first((name,), default))

    def numbers(self, name: str) -> list[float]:
        """The list of numbers under `name`, which must be there."""
        values = self._first((name,), None)
        if not isinstance(values, list):
            self.faults.append(f"{name} must be a list of numbers, not {values!r}")
            return []
        return [self._float(name, value) for value in values]

    def text(self, name: str, default: str = "") -> str:
        """The text under `name`."""
        value = self._first((name,), default)
        if not isinstance(value, str):
            self.faults.append(f"{name} must be text, not {value!r}")
            return default
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """The true or false under `name`."""
        value = self._first((name,), default)
        if not isinstance(value, bool):
            self.faults.append(f"{name} must be true or false, not {value!r}")
            return default
        return value

    def table(self, name: str) -> Fields | None:
        """The table within this one, whose faults count as faults of this one; None where there is none."""
        value = self.values.get(name)
        return Fields(value, f"{self.where}: {name}", self.faults) if isinstance(value, dict) else None

    def _first(self, names: tuple[str, ...], default: object) -> object:
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is None:
            self.faults.append(f"{' or '.join(names)} is missing")
        return default

    def _given(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if self.values.get(name) is not None)

    def _float(self, name: str, value: object) -> float:
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.faults.append(f"{name} must be a number, not {value!r}")
            return 0.0
        return float(value)


@cache
def read_table(file_name: str) -> Mapping[str, Mapping[str, object]]:
    """The entries of `cost_models/data/<file_name>`, a TOML file with one table per entry; read once."""
    return tomllib.loads((files(__package__) / "data" / file_name).read_text(encoding="utf-8"))


def entry(file_name: str, name: str) -> Fields:
    """The fields of one entry of a table that is there."""
    return Fields(read_table(file_name)[name], f"{file_name}: {name}")


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def resolve(kind: str, name: str, names: Iterable[str], aliases: Mapping[str, str]) -> str:
    """The canonical spelling of `name`: exact, then by alias, then ignoring case and separators.

    A model may also be named without its organisation when only one entry ends that way. Unknown names raise
    `UnknownNameError` with the nearest known ones.
    """
    known = {n: n for n in names} | dict(aliases)
    if name in known:
        return known[name]
    plain = {_plain(n): target for n, target in known.items()}
    tails: dict[str, set[str]] = {}
    for n, target in plain.items():
        tails.setdefault(n.rsplit("/", 1)[-1], set()).add(target)
    wanted = _plain(name)
    if wanted in plain:
        return plain[wanted]
    if len(tails.get(wanted, ())) == 1:
        return next(iter(tails[wanted]))
    raise UnknownNameError(kind, name, nearest(name, known))


def nearest(name: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Up to `count` known spellings that look most like `name`, best first."""
    plain = {_plain(n): n for n in known}
    wanted = _plain(name)
    hits = difflib.get_close_matches(wanted, plain, n=count, cutoff=0.5)
    tails = {n.rsplit("/", 1)[-1]: n for n in plain}
    hits += [
        tails[t] for t in difflib.get_close_matches(wanted.rsplit("/", 1)[-1], tails, n=count, cutoff=0.5)
    ]
    hits += [n for n in plain if wanted in n or n in wanted]
    return [plain[n] for n in dict.fromkeys(hits)][:count] or sorted(known)[:count]
