"""The parts into which a latency divides, and their means over bands of percentiles.

What each part means is said here once, for tables, documents and figures.

Time runs from a request's arrival to the token in question. At every moment the request is in exactly one of
these states, so the parts never overlap and add up to the latency.

Before it runs, and again after each preemption, time passes between calls of the scheduler. While it runs,
time passes in steps, and a step's GPU time divides by what it would have cost without the others: first the
request alone, then with those of its own kind (decodes, or prompt chunks), then with everybody. The
differences are what the others cost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.values import Floats, Ints


class Part(NamedTuple):
    """One part: its column (s), its name for people, and its meaning."""

    key: str
    label: str
    meaning: str


PARTS = (
    Part("front_end", "front end", "from arrival until the engine knows of it: HTTP, templates, tokenizing"),
    Part("under_way", "steps under way", "steps planned before it could take part end first"),
    Part("token_budget", "token budget", "max_num_batched_tokens was used up by others"),
    Part(
        "kv_blocks",
        "KV blocks",
        "the head of the line found too few free KV blocks, or others were preempted",
    ),
    Part("seq_slots", "sequence slots", "max_num_seqs requests were running"),
    Part("held_back", "held back", "by a grammar, an adapter slot, KV from outside, a pause or an interval"),
    Part("prefill", "own prefill", "its own prompt chunks, as if alone on the GPU"),
    Part("decode", "own decode", "its own decode steps, as if alone on the GPU"),
    Part("by_prefills", "others' prefills", "what prompt chunks of others added to its own steps"),
    Part("by_decodes", "others' decodes", "what decodes of others added to its own steps"),
    Part("recompute", "recompute", "its own tokens computed again after a preemption, as if alone"),
    Part("preempted", "preempted", "from each preemption until it was admitted again"),
    Part("host", "host", "the GPU waits for the CPU, or for KV being copied, in its own steps"),
)
KEYS = tuple(part.key for part in PARTS)
LABELS = {part.key: part.label for part in PARTS}
(
    FRONT_END,
    UNDER_WAY,
    TOKEN_BUDGET,
    KV_BLOCKS,
    SEQ_SLOTS,
    HELD_BACK,
    PREFILL,
    DECODE,
    BY_PREFILLS,
    BY_DECODES,
    RECOMPUTE,
    PREEMPTED,
    HOST,
) = range(len(PARTS))
"""The places of the parts in arrays."""

MIDDLE = (45.0, 55.0)


class PartColumns(NamedTuple):
    """The parts of some latencies, s: shape (latencies, columns), and which of `KEYS` the columns are."""

    columns: Sequence[int]
    parts: Floats


@dataclass(frozen=True, slots=True)
class SortedLatencies:
    """Latencies (s) in ascending order, each standing for `counts` equal ones, perhaps none.

    `parts` has the parts in the order in which the latencies were given; `order[i]` is where the i-th stood
    then.
    """

    latency_s: Floats
    counts: Ints
    order: Ints
    parts: Sequence[PartColumns]

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


def in_order(latency_s: Floats, parts: Sequence[PartColumns], counts: Ints | None = None) -> SortedLatencies:
    """Sort latencies, ties in the order given."""
    order = np.argsort(latency_s, kind="stable")
    counts = np.ones(len(latency_s), dtype=np.int64) if counts is None else counts
    return SortedLatencies(latency_s[order], counts[order], order, parts)


def weights(of: SortedLatencies, low: float, high: float) -> Ints:
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


def band(of: SortedLatencies, low: float, high: float) -> Band:
    """The means between two percentiles; all zero if nothing was measured."""
    sums = np.zeros(len(KEYS))
    if not of.size:
        return Band(low, high, 0, 0.0, dict.fromkeys(KEYS, 0.0))
    weight = weights(of, low, high)
    total = int(weight.sum())
    as_given = np.zeros(len(weight))
    as_given[of.order] = weight
    start = 0
    for columns in of.parts:
        sums[list(columns.columns)] += as_given[start : start + len(columns.parts)] @ columns.parts
        start += len(columns.parts)
    mean_s = float(weight @ of.latency_s / total)
    return Band(low, high, total, mean_s, dict(zip(KEYS, (sums / total).tolist(), strict=True)))


def edges(percentile: float) -> Sequence[float]:
    """The bands of a figure: the lower half, up to the ninth tenth, and the tail above the percentile."""
    return (0.0, *(p for p in (50.0, 90.0) if p < percentile), percentile, 100.0)
