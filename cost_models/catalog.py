"""Reads the packaged fact tables and resolves the names people use to the names the tables use."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TypeAlias, cast

from cost_models.errors import UnknownNameError

TomlValue: TypeAlias = "str | int | float | bool | list[TomlValue] | dict[str, TomlValue]"
TomlTable: TypeAlias = dict[str, TomlValue]

_HEADER = re.compile(r"""^\[{1,2}(?:"(?P<quoted>[^"]*)"|(?P<bare>[\w-]+))""", re.MULTILINE)


class _Entries(Mapping[str, TomlTable]):
    """The tables of a TOML file by name, each parsed when it is first looked at: a run wants few of them.

    A header (`[name]`, `["name".part]`, `[[name]]`) begins a line, and nothing else does with a bracket.
    """

    def __init__(self, toml: str) -> None:
        self._parsed: dict[str, TomlTable] = {}
        self._texts: dict[str, str] = {}
        headers = list(_HEADER.finditer(toml))
        ends = [header.start() for header in headers[1:]] + [len(toml)]
        for header, end in zip(headers, ends, strict=True):
            name = header["quoted"] or header["bare"]
            self._texts[name] = self._texts.get(name, "") + toml[header.start() : end]

    def __getitem__(self, name: str) -> TomlTable:
        if name not in self._parsed:
            self._parsed[name] = cast("TomlTable", tomllib.loads(self._texts[name])[name])
        return self._parsed[name]

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def read_table(file_name: str) -> Mapping[str, TomlTable]:
    """The entries of `cost_models/data/<file_name>`, a TOML file with one table per entry."""
    return _Entries((files(__package__) / "data" / file_name).read_text(encoding="utf-8"))


def number(table: Mapping[str, TomlValue], key: str, default: float = 0.0) -> float:
    """`table[key]` as a float, `default` where it is missing."""
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{key} = {value!r} is not a number")
    return float(value)


def numbers(table: Mapping[str, TomlValue], key: str) -> list[float]:
    """`table[key]` as a list of floats."""
    values = table[key]
    if not isinstance(values, list):
        raise TypeError(f"{key} = {values!r} is not a list")
    return [number({key: value}, key) for value in values]


def whole(table: Mapping[str, TomlValue], key: str, default: int = 0) -> int:
    """`table[key]` as an int, `default` where it is missing."""
    return int(number(table, key, default))


def text(table: Mapping[str, TomlValue], key: str, default: str = "") -> str:
    """`table[key]` as a string, `default` where it is missing."""
    return str(table.get(key, default))


def flag(table: Mapping[str, TomlValue], key: str) -> bool:
    """`table[key]` as a bool, False where it is missing."""
    return bool(table.get(key, False))


def subtable(table: Mapping[str, TomlValue], key: str) -> TomlTable | None:
    """`table[key]` as a nested table, None where it is missing."""
    value = table.get(key)
    return value if isinstance(value, dict) else None


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
