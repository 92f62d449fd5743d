"""Where the time of every request went: the parts of its TTFT and E2E, and of its gaps that are no one step.

Each request is followed once from event to event; all time between two of them is booked under one of the
`parts`. So for every request the parts add up to the latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import NamedTuple, TypeVar

import numpy as np

from sim.cluster.recorder import Recorder, TokenTimes
from sim.cluster.watched import ReplicaWatch, Wait, Watch
from sim.questions.explain.parts import (
    BY_DECODES,
    BY_PREFILLS,
    DECODE,
    FRONT_END,
    HELD_BACK,
    HOST,
    KEYS,
    KV_BLOCKS,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    SEQ_SLOTS,
    TOKEN_BUDGET,
    UNDER_WAY,
)
from sim.questions.explain.step_phases import Chunk, StepPhases
from sim.values import Bools, Floats, Ints

T = TypeVar("T")

_PART_OF_WAIT = {
    Wait.TOKENS: TOKEN_BUDGET,
    Wait.BLOCKS: KV_BLOCKS,
    Wait.SEQS: SEQ_SLOTS,
    Wait.HELD: HELD_BACK,
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """The books of the requests asked for, in the order of `request`; times in s, parts by `KEYS`.

    `ttft`, `e2e`: shape (requests, parts). `behind_s`: of the time before its first admission for want of KV
    blocks, what passed behind another request at the head of the line. `gap_*`: each gap between two tokens
    of a request that is not exactly one step, with the request and when it ended.
    """

    request: Ints
    ttft: Floats
    e2e: Floats
    behind_s: Floats
    gap_request: Ints
    gap_end_s: Floats
    gap: Floats


def keep_books(
    recorder: Recorder,
    tokens: TokenTimes,
    watch: Watch,
    steps: Sequence[StepPhases],
    chosen: Bools,
    alone: DecodeAlone | None,
) -> Ledger:
    """Follow the chosen requests, which must have finished.

    `steps` has those of each replica. `alone` says what decoding alone costs; None: a request's own decoding
    and that of the others in its steps are not told apart.
    """
    ids = np.flatnonzero(chosen)
    lines = [_LineWaits(columns) for columns in watch.replicas]
    chunks = [
        _chunks_by_request(columns, len(own.end_s))
        for columns, own in zip(watch.replicas, steps, strict=True)
    ]
    first_run = np.searchsorted(tokens.request, ids)
    last_run = np.searchsorted(tokens.request, ids, side="right")
    ttft, e2e, behind = np.zeros((len(ids), len(KEYS))), np.zeros((len(ids), len(KEYS))), np.zeros(len(ids))
    gaps: list[_LongGap] = []
    log = recorder.requests
    for i, request in enumerate(ids.tolist()):
        replica = log.replica[request]
        book = _RequestBook(request, log.arrival_s[request], steps[replica])
        book.charge(FRONT_END, watch.entered_s[request])
        calls = watch.first_call[request], watch.admission_call[request]
        behind[i] = lines[replica].book_wait(book, *calls, log.first_scheduled_s[request])
        runs = range(first_run[i], last_run[i])
        with_tokens = [(int(tokens.first_step[k]), int(tokens.num_steps[k])) for k in runs]
        stretches = _stretches(with_tokens, chunks[replica].get(request, []))
        ttft[i] = book.follow(stretches, watch.stalls.get(request, ()), gaps)
        if alone is not None:
            book.divide_decode(alone, log.output_tokens[request])
        e2e[i] = book.parts
    return Ledger(
        ids,
        ttft,
        e2e,
        behind,
        np.array([gap.request for gap in gaps], dtype=np.int64),
        np.array([gap.end_s for gap in gaps]),
        np.array([gap.parts for gap in gaps]).reshape(-1, len(KEYS)),
    )


class DecodeAlone:
    """What decode steps cost a request that has the GPU for itself. `step_s[c]`: with c tokens of context."""

    def __init__(self, step_s: Floats, prompt_tokens: Ints) -> None:
        self._sums = np.concatenate(([0.0], np.cumsum(step_s)))
        self._prompt_tokens = prompt_tokens

    def seconds(self, request: int, num_output_tokens: int, num_steps: int) -> float:
        """The decode steps of an answer. Those tokens that came with a prefill or a recomputation had none;
        which ones matters little, so the mean step is taken `num_steps` times."""
        if num_output_tokens < 2:
            return 0.0
        prompt = int(self._prompt_tokens[request])
        all_s = self._sums[prompt + num_output_tokens] - self._sums[prompt + 1]
        return float(all_s) * num_steps / (num_output_tokens - 1)


class _LineWaits:
    """The waiting line of one replica: for how long each reason held up to any call."""

    def __init__(self, columns: ReplicaWatch) -> None:
        self._call_s = np.frombuffer(columns.call_s, dtype=np.float64)
        self._waits = np.frombuffer(columns.call_wait, dtype=np.int8)
        self._took_s = np.frombuffer(columns.call_until_s, dtype=np.float64) - self._call_s
        self._sums = np.zeros((len(self._call_s) + 1, len(Wait)))
        for wait in Wait:
            self._sums[1:, wait] = np.cumsum(np.where(self._waits == wait, self._took_s, 0.0))
        self._headed = _grouped(zip(columns.call_head, range(len(columns.call_head)), strict=True))
        self._aside = _grouped(zip(columns.aside_request, columns.aside_call, strict=True))

    def book_wait(self, book: _RequestBook, first: int, admission: int, scheduled_s: float) -> float:
        """Book the wait of a request until it is first admitted; return the time behind others for blocks."""
        if admission <= first:
            book.charge(UNDER_WAY, scheduled_s)
            return 0.0
        book.charge(UNDER_WAY, float(self._call_s[first]))
        waited = self._sums[admission] - self._sums[first]
        for call in self._aside.get(book.request, ()):
            if first <= call < admission:
                waited[self._waits[call]] -= self._took_s[call]
                waited[Wait.HELD] += self._took_s[call]
        for wait, part in _PART_OF_WAIT.items():
            book.parts[part] += waited[wait]
        book.at = scheduled_s
        at_head = sum(
            self._took_s[call]
            for call in self._headed.get(book.request, ())
            if first <= call < admission and self._waits[call] == Wait.BLOCKS
        )
        return float(max(waited[Wait.BLOCKS] - at_head, 0.0))


def _chunks_by_request(columns: ReplicaWatch, num_steps: int) -> dict[int, list[tuple[int, Chunk]]]:
    """The chunks of each request with their steps, as far as these have ended."""
    chunks = map(Chunk, columns.chunk_alone_s, columns.chunks_s, columns.chunk_again)
    rows = zip(columns.chunk_request, columns.chunk_step, chunks, strict=True)
    return _grouped((request, (step, chunk)) for request, step, chunk in rows if step < num_steps)


def _grouped(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """By the first of each pair, the second ones in the order in which they came."""
    found: dict[int, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class _Stretch(NamedTuple):
    """Successive steps that served a request: the first, how many, the chunk if it is one (then it is a
    single step), and whether each step gives tokens.
    """

    first: int
    num_steps: int
    chunk: Chunk | None
    gives_tokens: bool


def _stretches(
    with_tokens: Sequence[tuple[int, int]], chunks: Sequence[tuple[int, Chunk]]
) -> Iterator[_Stretch]:
    """The steps that served a request, in order: its chunks, and runs of steps in which it had tokens."""
    waiting = iter(sorted(chunks, key=lambda item: item[0]))
    step, chunk = next(waiting, (None, None))
    for first, count in with_tokens:
        while step is not None and step < first:
            yield _Stretch(step, 1, chunk, False)
            step, chunk = next(waiting, (None, None))
        end = first + count
        while step is not None and step < end:
            if step > first:
                yield _Stretch(first, step - first, None, True)
            yield _Stretch(step, 1, chunk, True)
            first = step + 1
            step, chunk = next(waiting, (None, None))
        if first < end:
            yield _Stretch(first, end - first, None, True)


class _LongGap(NamedTuple):
    """A gap between two tokens of a request that is not exactly one step: when it ended, its parts, s."""

    request: int
    end_s: float
    parts: Floats


class _RequestBook:
    """The books of one request: what has been booked (`parts`), and up to when (`at`, s)."""

    def __init__(self, request: int, arrival_s: float, steps: StepPhases) -> None:
        self.request = request
        self.at = arrival_s
        self.parts = np.zeros(len(KEYS))
        self._num_decode_steps = 0
        self._last_step: int | None = None
        self._steps = steps

    def charge(self, part: int, until_s: float) -> None:
        """All time up to a moment goes to one part."""
        if until_s > self.at:
            self.parts[part] += until_s - self.at
            self.at = until_s

    def divide_decode(self, alone: DecodeAlone, num_output_tokens: int) -> None:
        """Of the decode time booked so far for whole batches, leave the request what is its own."""
        parts = self.parts
        own_s = alone.seconds(self.request, num_output_tokens, self._num_decode_steps)
        own_s = min(own_s, float(parts[DECODE]))
        parts[BY_DECODES] += parts[DECODE] - own_s
        parts[DECODE] = own_s

    def follow(
        self,
        stretches: Iterator[_Stretch],
        stalls: Sequence[tuple[float, float]],
        gaps: list[_LongGap],
    ) -> Floats:
        """Book everything from the first admission to the last token; return the books at the first token.

        Gaps between tokens that are not exactly one step are added to `gaps`.
        """
        waiting = iter(stalls)
        stall = next(waiting, (inf, inf))
        at_first: Floats | None = None
        at_token, last_token = self.parts, -1
        end_s = self._steps.end_s
        for first, count, chunk, gives_tokens in stretches:
            step, end = first, first + count
            while step < end:
                goes_on = at_first is not None and step == last_token + 1
                if goes_on and chunk is None and end_s[step] <= stall[0]:
                    upto = step + int(np.searchsorted(end_s[step:end], stall[0], "right"))
                    self._book_run(step - 1, upto - 1)
                    step, last_token = upto, upto - 1
                    continue
                while stall[0] < end_s[step]:
                    self._book_step(step, chunk, stall[0])
                    if isnan(stall[1]) or stall[1] >= end_s[step]:
                        self.charge(PREEMPTED, float(end_s[step]))
                        stall = (float(end_s[step]), stall[1])
                        break
                    self.charge(PREEMPTED, stall[1])
                    stall = next(waiting, (inf, inf))
                self._book_step(step, chunk, float(end_s[step]))
                if gives_tokens:
                    if at_first is None:
                        at_first = self.parts.copy()
                    elif not goes_on:
                        gaps.append(_LongGap(self.request, float(end_s[step]), self.parts - at_token))
                    self._num_decode_steps += chunk is None
                    at_token, last_token = self.parts.copy(), step
                step += 1
            if gives_tokens and chunk is None:
                at_token = self.parts.copy()
        return self.parts.copy() if at_first is None else at_first

    def _book_run(self, after: int, last: int) -> None:
        """Decode steps without a gap, up to `last`; the one before them was booked up to its end."""
        self._num_decode_steps += last - after
        unplanned, under_way, host, decodes, chunks = self._steps.run(after, last)
        parts = self.parts
        parts[HELD_BACK] += unplanned
        parts[UNDER_WAY] += under_way
        parts[HOST] += host
        parts[DECODE] += decodes
        parts[BY_PREFILLS] += chunks
        self.at, self._last_step = float(self._steps.end_s[last]), last

    def _book_step(self, step: int, chunk: Chunk | None, until_s: float) -> None:
        """One step that serves the request, from where the books stand to its end or to `until_s`."""
        if until_s <= self.at:
            return
        span = self._steps.span(step, self.at, until_s)
        parts = self.parts
        if span.unplanned > 0.0:
            first = step if self._last_step is None else self._last_step + 1
            held_s = span.unplanned * self._steps.held_share(first, step)
            parts[HELD_BACK] += held_s
            parts[TOKEN_BUDGET] += span.unplanned - held_s
        parts[UNDER_WAY] += span.under_way
        parts[HOST] += span.host
        if chunk is None:
            share = self._steps.decode_share(step)
            parts[DECODE] += span.gpu * share
            parts[BY_PREFILLS] += span.gpu * (1.0 - share)
        else:
            alone, prefills, decodes = self._steps.chunk_shares(step, chunk)
            parts[RECOMPUTE] += span.gpu * alone * chunk.again
            parts[PREFILL] += span.gpu * alone * (1.0 - chunk.again)
            parts[BY_PREFILLS] += span.gpu * prefills
            parts[BY_DECODES] += span.gpu * decodes
        self.at, self._last_step = until_s, step
