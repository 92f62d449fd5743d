"""Bands of percentiles: what the slowest had to wait for, and what those in the middle had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.questions.explain.parts import KEYS
from sim.values import Floats, Ints

MIDDLE = (45.0, 55.0)


class Block(NamedTuple):
    """The parts of some latencies, s: shape (latencies, columns), and which of `KEYS` the columns are."""

    columns: Sequence[int]
    parts: Floats


@dataclass(frozen=True, slots=True)
class Sampled:
    """Latencies (s) in ascending order, each standing for `counts` equal ones, perhaps none.

    `blocks` have their parts in the order in which they were given; `order[i]` is where the i-th stood then.
    """

    values: Floats
    counts: Ints
    order: Ints
    blocks: Sequence[Block]

    @property
    def size(self) -> int:
        """How many latencies there are."""
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class Band:
    """The latencies between two percentiles: how many, their mean and the means of their parts, s."""

    low: float
    high: float
    size: int
    mean_s: float
    parts: dict[str, float]

    @property
    def label(self) -> str:
        """Such as p90–p99."""
        return f"p{self.low:g}–p{self.high:g}"


def in_order(values: Floats, blocks: Sequence[Block], counts: Ints | None = None) -> Sampled:
    """Sort latencies, ties in the order given."""
    order = np.argsort(values, kind="stable")
    counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
    return Sampled(values[order], counts[order], order, blocks)


def weights(of: Sampled, low: float, high: float) -> Ints:
    """How many of each latency lie between two percentiles by rank, (low, high].

    A band too thin to hold one holds the one at its upper end, so only an empty sample has empty bands.
    """
    size = of.size
    first, last = round(low / 100.0 * size), round(high / 100.0 * size)
    if last <= first:
        last = min(max(last, 1), size)
        first = last - 1
    upto = np.cumsum(of.counts)
    inside: Ints = np.clip(np.minimum(upto, last) - np.maximum(upto - of.counts, first), 0, None)
    return inside


def band(of: Sampled, low: float, high: float) -> Band:
    """The means between two percentiles; all zero if nothing was measured."""
    sums = np.zeros(len(KEYS))
    if not of.size:
        return Band(low, high, 0, 0.0, dict.fromkeys(KEYS, 0.0))
    weight = weights(of, low, high)
    total = int(weight.sum())
    as_given = np.zeros(len(weight))
    as_given[of.order] = weight
    start = 0
    for block in of.blocks:
        sums[list(block.columns)] += as_given[start : start + len(block.parts)] @ block.parts
        start += len(block.parts)
    mean_s = float(weight @ of.values / total)
    return Band(low, high, total, mean_s, dict(zip(KEYS, (sums / total).tolist(), strict=True)))


def edges(percentile: float) -> Sequence[float]:
    """The bands of a figure: the lower half, up to the ninth tenth, and the tail above the percentile."""
    return (0.0, *(p for p in (50.0, 90.0) if p < percentile), percentile, 100.0)
