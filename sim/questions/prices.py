"""What GPUs cost: from a user's file or options, never from here. Without prices no money is spoken of."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import isfinite
from pathlib import Path

import cost_models
from cost_models import UnknownNameError
from sim.errors import Fault, InputError, did_you_mean, input_error
from sim.scenario.yaml_text import read_yaml

EXAMPLE = "example"
_FIELDS = ("currency", "note", "per_gpu_hour")
_HOW = "such as --prices h100-sxm=4.00,a100-sxm-80gb=2.00 or a file with a table per_gpu_hour"


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for an hour of one GPU, by the GPU's name; `source` says where the numbers come from."""

    per_gpu_hour: Mapping[str, float]
    currency: str
    source: str

    def missing(self, gpus: Iterable[str]) -> str:
        """`no price for h100-sxm, …` of those GPUs that have none; empty if all have one."""
        without = sorted(set(gpus) - set(self.per_gpu_hour))
        return f"no price for {', '.join(without)}" if without else ""


def read_prices(text: str) -> Prices:
    """Prices of a .toml, .yaml or .yml file, of `gpu=price,…`, or, if `text` is `example`, those shipped.

    Raises `InputError` with all faults.
    """
    if text == EXAMPLE:
        shipped = files(__package__) / "prices_example.toml"
        return _checked(
            tomllib.loads(shipped.read_text(encoding="utf-8")), "prices example", "example prices"
        )
    if "=" in text and not Path(text).exists():
        return _inline(text)
    path = Path(text)
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise input_error(f"is no .toml or .yaml file; write prices {_HOW}", where=f"--prices {text}")
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text: byte {error.start}", where=text) from None
    except OSError as error:
        raise input_error(f"cannot be read: {(error.strerror or str(error)).lower()}", where=text) from None
    if path.suffix == ".toml":
        try:
            return _checked(tomllib.loads(content), text, text)
        except tomllib.TOMLDecodeError as error:
            raise input_error(f"not TOML: {error}", where=text) from None
    data, _, faults = read_yaml(content, text)
    if faults:
        raise InputError(faults)
    return _checked(data, text, text)


def _inline(text: str) -> Prices:
    where = f"--prices {text}"
    table: dict[str, object] = {}
    twice: list[Fault] = []
    for part in text.split(","):
        name, _, price = (piece.strip() for piece in part.partition("="))
        if name in table:
            twice.append(Fault(where, f"per_gpu_hour.{name}", "is given twice"))
            continue
        try:
            table[name] = float(price)
        except ValueError:
            table[name] = price
    try:
        found = _checked({"per_gpu_hour": table}, where, "--prices")
    except InputError as error:
        raise InputError([*twice, *error.faults]) from None
    if twice:
        raise InputError(twice)
    return found


def _checked(data: object, where: str, source: str) -> Prices:
    faults = []
    if not isinstance(data, Mapping):
        raise input_error(f"must be a mapping with {', '.join(_FIELDS)}", where=where)
    for key in data:
        if key not in _FIELDS:
            near = did_you_mean(str(key), _FIELDS)
            faults.append(Fault(where, str(key), f"unknown; there are {', '.join(_FIELDS)}{near}"))
    words = {key: data.get(key, default) for key, default in (("currency", "$"), ("note", ""))}
    faults += [
        Fault(where, key, "must be text") for key, value in words.items() if not isinstance(value, str)
    ]
    table = data.get("per_gpu_hour")
    if not isinstance(table, Mapping) or not table:
        faults.append(
            Fault(where, "per_gpu_hour", "must be a table of prices by GPU, such as h100-sxm = 4.00")
        )
        raise InputError(faults)
    prices: dict[str, float] = {}
    faults += _read_table(table, where, prices)
    if faults:
        raise InputError(faults)
    note = f" ({words['note']})" if words["note"] else ""
    return Prices(prices, str(words["currency"]), f"{source}{note}")


def _read_table(table: Mapping[object, object], where: str, prices: dict[str, float]) -> Iterator[Fault]:
    """Fills `prices`; gives what is wrong."""
    for name, price in table.items():
        try:
            canonical = cost_models.gpu(str(name)).name
        except UnknownNameError as error:
            yield Fault(where, f"per_gpu_hour.{name}", str(error))
            continue
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < float("inf"):
            yield Fault(where, f"per_gpu_hour.{name}", f"must be a price above 0 (got {price!r})")
        elif not isfinite(price) or canonical in prices:
            yield Fault(where, f"per_gpu_hour.{name}", "is given twice")
        else:
            prices[canonical] = float(price)
