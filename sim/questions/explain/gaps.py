"""The parts of inter-token latencies. Most gaps are exactly one step, and all who decode in it share them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.cluster.recorder import TokenTimes
from sim.questions.explain.bands import Block, in_order
from sim.questions.explain.ledger import BY_DECODES, BY_PREFILLS, DECODE, HELD, HOST, UNDER_WAY, Ledger
from sim.questions.explain.parts import KEYS
from sim.questions.explain.spans import Spans
from sim.values import Bools, Floats, Ints

_OF_A_STEP = (HELD, UNDER_WAY, HOST, DECODE, BY_PREFILLS)


class Gaps:
    """Every gap of the counted requests, in ascending order.

    `decode` is here the decoding of the whole batch: who of a batch pays for whom has no answer. `replica`
    and `step` say where a gap lies (-1: in more than one step), `end_s` when it ended.
    """

    def __init__(self, tokens: TokenTimes, spans: Sequence[Spans], books: Ledger, counted: Bools) -> None:
        values, counts, blocks = [], [], []
        for number, own in enumerate(spans):
            chosen = (tokens.replica == number) & counted[tokens.request]
            counts.append(_covering(tokens.first_step[chosen], tokens.num_steps[chosen], len(own.end_s)))
            values.append(own.gap_s)
            blocks.append(Block(_OF_A_STEP, own.gap_parts))
        irregular = books.gap.copy()
        irregular[:, DECODE] += irregular[:, BY_DECODES]
        irregular[:, BY_DECODES] = 0.0
        values.append(irregular.sum(axis=1))
        counts.append(np.ones(len(irregular), dtype=np.int64))
        blocks.append(Block(range(len(KEYS)), irregular))
        self.sampled = in_order(np.concatenate(values), blocks, np.concatenate(counts))
        order = self.sampled.order
        steps = [np.arange(len(own.end_s)) for own in spans]
        replicas = [np.full(len(own.end_s), number) for number, own in enumerate(spans)]
        none = np.full(len(irregular), -1)
        self.step: Ints = np.concatenate([*steps, none])[order]
        self.replica: Ints = np.concatenate([*replicas, none])[order]
        self.end_s: Floats = np.concatenate([*(own.end_s for own in spans), books.gap_end_s])[order]


def _covering(first: Ints, count: Ints, num_steps: int) -> Ints:
    """For each step, how many runs hold both it and the step before."""
    edges = np.zeros(num_steps + 1, dtype=np.int64)
    np.add.at(edges, first + 1, 1)
    np.add.at(edges, first + count, -1)
    covered: Ints = np.cumsum(edges)[:num_steps]
    return covered
