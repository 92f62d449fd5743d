"""How a run table writes token lengths: `fixed:128`, `uniform:819:1024`, `mix:0.5*mean:256+0.5*mean:4096`, …

A spec is parsed once, when the table is read, so that a slip in row 40 is reported with all the others;
it is drawn later, from a named random stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Fixed",
    "FromFile",
    "LengthSpec",
    "Mean",
    "Mix",
    "QuantileTable",
    "Quantiles",
    "Uniform",
    "parse_lengths",
]

#: A table name to (percentiles 0..100, tokens at each): what `quantiles:NAME` looks its name up in.
QuantileTable = Callable[[str], tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class Fixed:
    """Every request has `tokens` tokens."""

    tokens: int

    def draw(self, rng: np.random.Generator, count: int, table: QuantileTable) -> np.ndarray:
        """`count` lengths."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class Mean:
    """Only the mean is known; every request gets it, rounded. Tails can then not be compared."""

    tokens: float

    def draw(self, rng: np.random.Generator, count: int, table: QuantileTable) -> np.ndarray:
        """`count` lengths."""
        return np.full(count, max(1, round(self.tokens)), dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator, count: int, table: QuantileTable) -> np.ndarray:
        """`count` lengths."""
        return rng.integers(self.low, self.high, size=count, endpoint=True)


@dataclass(frozen=True)
class Quantiles:
    """A named row of a length-quantile table, linear between the stated percentiles."""

    name: str

    def draw(self, rng: np.random.Generator, count: int, table: QuantileTable) -> np.ndarray:
        """`count` lengths; KeyError where the table has no such name."""
        percentiles, tokens = table(self.name)
        drawn = np.interp(rng.uniform(0.0, 100.0, size=count), percentiles, tokens)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


@dataclass(frozen=True)
class Mix:
    """Each request draws one of the parts by weight, then its length from that part."""

    weights: tuple[float, ...]
    parts: tuple[Fixed | Mean | Uniform | Quantiles, ...]

    def draw(self, rng: np.random.Generator, count: int, table: QuantileTable) -> np.ndarray:
        """`count` lengths."""
        choice = rng.choice(len(self.parts), size=count, p=np.asarray(self.weights) / sum(self.weights))
        drawn = np.stack([part.draw(rng, count, table) for part in self.parts])
        return np.asarray(drawn[choice, np.arange(count)], dtype=np.int64)


@dataclass(frozen=True)
class FromFile:
    """The lengths stand in the row's requests file."""


LengthSpec = Fixed | Mean | Uniform | Quantiles | Mix | FromFile

#: Weights written with a few digits still count as summing to one.
_WEIGHT_TOLERANCE = 1e-3


def parse_lengths(text: str) -> LengthSpec:
    """The spec that `text` writes; ValueError says what is wrong with it."""
    if text == "file":
        return FromFile()
    kind, _, rest = text.partition(":")
    if kind != "mix":
        return _parse_simple(text)
    weights, parts = [], []
    for term in rest.split("+"):
        weight, star, spec = term.partition("*")
        if not star:
            raise ValueError(f"{text!r}: each part of a mix is WEIGHT*SPEC, this one is {term!r}")
        weights.append(_number(weight, text))
        parts.append(_parse_simple(spec))
    if min(weights) < 0 or abs(sum(weights) - 1.0) > _WEIGHT_TOLERANCE:
        raise ValueError(f"{text!r}: the weights of a mix sum to 1, these to {sum(weights):g}")
    return Mix(tuple(weights), tuple(parts))


def _parse_simple(text: str) -> Fixed | Mean | Uniform | Quantiles:
    kind, _, rest = text.partition(":")
    match kind, rest.split(":"):
        case "fixed", [tokens] if tokens:
            return Fixed(_whole(tokens, text))
        case "mean", [tokens] if tokens:
            mean = _number(tokens, text)
            if mean <= 0:
                raise ValueError(f"{text!r}: a mean length is above 0")
            return Mean(mean)
        case "uniform", [low, high]:
            lowest, highest = _whole(low, text), _whole(high, text)
            if highest < lowest:
                raise ValueError(f"{text!r}: the lower end is above the upper one")
            return Uniform(lowest, highest)
        case "quantiles", [name] if name:
            return Quantiles(name)
    raise ValueError(
        f"{text!r} is not a length: fixed:N, uniform:LO:HI, mean:M, mix:W*SPEC+W*SPEC (no nesting),"
        " quantiles:NAME or file"
    )


def _number(text: str, spec: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{spec!r}: {text!r} is not a number") from None


def _whole(text: str, spec: str) -> int:
    number = _number(text, spec)
    if number != int(number) or number < 1:
        raise ValueError(f"{spec!r}: {text!r} is not a whole number of tokens above 0")
    return int(number)
