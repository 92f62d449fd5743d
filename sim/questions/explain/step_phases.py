"""The phases of a step as a request in it sees them, from its last token (or admission) to the step's end;
and the gaps between tokens, of which most are exactly one step.

    previous ── not planned yet ── planned, GPU busy with others ── host ── GPU ── host ── end

Runs of steps that a request decodes in without a gap are the usual case: sums over all steps are kept, so
that a run of any length costs two look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.cluster.recorder import TokenTimes
from sim.cluster.watched import ReplicaWatch
from sim.questions.explain.parts import (
    BY_DECODES,
    BY_PREFILLS,
    DECODE,
    HELD_BACK,
    HOST,
    KEYS,
    UNDER_WAY,
    PartColumns,
    in_order,
)
from sim.results.metrics import coverage
from sim.values import Bools, Floats, Ints

_PARTS_OF_A_STEP = (HELD_BACK, UNDER_WAY, HOST, DECODE, BY_PREFILLS)


class Phases(NamedTuple):
    """Seconds of a stretch of time within a step, by phase; the caller divides `gpu` among requests."""

    unplanned: float
    under_way: float
    host: float
    gpu: float


class Chunk(NamedTuple):
    """A prompt chunk of a request: GPU seconds alone, of all chunks of the step, and the share recomputed."""

    alone_s: float
    chunks_s: float
    again: float


class StepPhases:
    """The steps of one replica, with the end times that the recorder has."""

    def __init__(self, watch: ReplicaWatch, end_s: Floats) -> None:
        n = len(end_s)
        self._scheduled, self._free = watch.scheduled_s, watch.free_s
        self._begin, self._gpu_end, self._decodes = watch.begin_s, watch.gpu_end_s, watch.decodes_s
        self._held = watch.step_held
        self.end_s = end_s
        columns = [self._scheduled, self._free, self._begin, self._gpu_end, self._decodes]
        scheduled, free, begin, gpu_end, decodes = (np.frombuffer(c, dtype=np.float64)[:n] for c in columns)
        previous = np.concatenate(([np.inf], end_s[:-1]))[:n]
        if n:
            previous[0] = scheduled[0]
        from_s = np.maximum(previous, scheduled)
        under_way = np.maximum(np.minimum(free, end_s) - from_s, 0.0)
        from_s = np.maximum(from_s, free)
        host = np.maximum(begin - from_s, 0.0)
        from_s = np.maximum(from_s, begin)
        gpu = np.maximum(gpu_end - from_s, 0.0)
        host += np.maximum(end_s - np.maximum(from_s, gpu_end), 0.0)
        total = gpu_end - begin
        share = np.divide(decodes, total, out=np.ones(n), where=total > 0)
        self.gap_s = end_s - previous
        self.gap_parts = np.empty((n, 5))
        """By step, for who also had a token in the step before: the gap's time not planned, under way, of the
        host, of all its decodes, and of its prompt chunks."""
        self.gap_parts[:, 0] = np.maximum(np.minimum(scheduled, end_s) - previous, 0.0)
        self.gap_parts[:, 1] = under_way
        self.gap_parts[:, 2] = host
        self.gap_parts[:, 3] = gpu * np.minimum(share, 1.0)
        self.gap_parts[:, 4] = gpu - self.gap_parts[:, 3]
        self._sums = np.concatenate((np.zeros((1, 5)), np.cumsum(self.gap_parts, axis=0)))

    def run(self, after: int, last: int) -> Floats:
        """Sums of `gap_parts` over the steps after `after` up to `last`."""
        sums: Floats = self._sums[last + 1] - self._sums[after + 1]
        return sums

    def scheduled_s(self, step: int) -> float:
        """When the step was scheduled."""
        return self._scheduled[step]

    def span(self, step: int, from_s: float, until_s: float) -> Phases:
        """The part of [from_s, until_s] in each phase of the step; they add up to it."""
        end_s = min(float(self.end_s[step]), until_s)
        at = from_s
        parts = []
        for moment in (self._scheduled[step], self._free[step], self._begin[step], self._gpu_end[step]):
            upto = min(max(at, moment), max(end_s, at))
            parts.append(upto - at)
            at = upto
        rest = max(end_s - at, 0.0)
        return Phases(parts[0], parts[1], parts[2] + rest, parts[3])

    def held_share(self, first: int, step: int) -> float:
        """Of the time before `step` in which a running request got no tokens though steps from `first` on
        were planned: the share of those in which prefills were held back. All of it, if there were none:
        then the engine was paused.
        """
        if first >= step:
            return 1.0
        held_s = all_s = 0.0
        for skipped in range(first, step):
            all_s += self.gap_s[skipped]
            held_s += self.gap_s[skipped] if self._held[skipped] else 0.0
        return held_s / all_s if all_s else 0.0

    def decode_share(self, step: int) -> float:
        """The share of the step's GPU time that its decodes alone would take."""
        total = self._gpu_end[step] - self._begin[step]
        return min(self._decodes[step] / total, 1.0) if total > 0 else 1.0

    def chunk_shares(self, step: int, chunk: Chunk) -> tuple[float, float, float]:
        """Shares of the GPU time for who computes a chunk: its own, other chunks, decodes."""
        total = self._gpu_end[step] - self._begin[step]
        if total <= 0:
            return 1.0, 0.0, 0.0
        alone = min(chunk.alone_s / total, 1.0)
        together = min(max(chunk.chunks_s / total, alone), 1.0)
        return alone, together - alone, 1.0 - together


class Gaps:
    """Every gap between tokens of the counted requests, in ascending order (`latencies`).

    Most gaps are exactly one step, and all who decode in it share them; `longer_s` (shape (gaps, parts)) and
    `longer_end_s` are the parts and ends of the others. `decode` is here the decoding of the whole batch: who
    of a batch pays for whom has no answer. `replica` and `step` say where a gap lies (-1: in more than one
    step), `end_s` when it ended.
    """

    def __init__(
        self,
        tokens: TokenTimes,
        steps: Sequence[StepPhases],
        longer_s: Floats,
        longer_end_s: Floats,
        counted: Bools,
    ) -> None:
        values, counts, parts = [], [], []
        for replica, own in enumerate(steps):
            chosen = (tokens.replica == replica) & counted[tokens.request]
            first, stop = tokens.first_step[chosen], (tokens.first_step + tokens.num_steps)[chosen]
            counts.append(coverage(first + 1, stop, len(own.end_s)))
            values.append(own.gap_s)
            parts.append(PartColumns(_PARTS_OF_A_STEP, own.gap_parts))
        longer_s = longer_s.copy()
        longer_s[:, DECODE] += longer_s[:, BY_DECODES]
        longer_s[:, BY_DECODES] = 0.0
        values.append(longer_s.sum(axis=1))
        counts.append(np.ones(len(longer_s), dtype=np.int64))
        parts.append(PartColumns(range(len(KEYS)), longer_s))
        self.latencies = in_order(np.concatenate(values), parts, np.concatenate(counts))
        order = self.latencies.order
        none = np.full(len(longer_s), -1)
        self.step: Ints = np.concatenate([*(np.arange(len(own.end_s)) for own in steps), none])[order]
        replicas = [np.full(len(own.end_s), replica) for replica, own in enumerate(steps)]
        self.replica: Ints = np.concatenate([*replicas, none])[order]
        self.end_s: Floats = np.concatenate([*(own.end_s for own in steps), longer_end_s])[order]
