"""Requests made from distributions: alone, or as turns of sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.random_streams import Streams
from sim.scenario.distributions import MixtureLengths
from sim.scenario.requests import (
    FixedTurns,
    GeometricTurns,
    PrefixesSection,
    SessionsSection,
    TurnCount,
    UniformTurns,
)
from sim.scenario.workload import (
    BurstWorkload,
    ClosedLoopWorkload,
    ConstantWorkload,
    GammaWorkload,
    OpenLoopSection,
    SyntheticSection,
)
from sim.values import Bools, Floats, Ints
from sim.workload.draws import draw_choices, draw_lengths, draw_times_s, quantile
from sim.workload.prompts import DistinctPrompts, PrefixedPrompts, Prompts, SessionPrompts
from sim.workload.table import RequestTable

Gaps = Callable[[int], Floats]


def arrival_times_s(section: OpenLoopSection, rng: np.random.Generator) -> Floats:
    """Arrival times in seconds, rising, up to `duration_s` (included) or `num_requests` of them.

    Operational time is the number of requests expected so far: gaps in it have mean 1. A longer run begins
    with the same arrivals as a shorter one of the same seed (unless rescaled by `exact_rate`).
    """
    clock = _Clock(section.rate_per_s, section.rate_curve or ((0.0, 1.0),))
    if section.num_requests is not None:
        times = np.cumsum(_gaps(section, rng)(section.num_requests))
        if isinstance(section, ConstantWorkload):
            times = np.arange(1.0, section.num_requests + 1)
    else:
        assert section.duration_s is not None
        times = _times_until(section, clock.operational(section.duration_s), rng)
    if section.exact_rate and len(times):
        times = times * (len(times) / times[-1])
    arrivals_s = clock.seconds(times)
    return arrivals_s if section.duration_s is None else np.minimum(arrivals_s, section.duration_s)


def _gaps(section: OpenLoopSection, rng: np.random.Generator) -> Gaps:
    """Draws of gaps of mean 1: gamma with vLLM's burstiness as its shape, exponential for Poisson."""
    if isinstance(section, GammaWorkload):
        shape = section.burstiness
        return lambda count: rng.standard_gamma(shape, count) / shape
    if isinstance(section, ConstantWorkload):
        return np.ones
    return rng.standard_exponential


def _times_until(section: OpenLoopSection, end: float, rng: np.random.Generator) -> Floats:
    """Arrivals in operational time up to `end`, drawn in batches until it is passed."""
    if isinstance(section, ConstantWorkload):
        return np.arange(1.0, np.floor(end * (1 + 1e-12)) + 1)
    gaps = _gaps(section, rng)
    batches, last = [np.empty(0)], 0.0
    while last <= end:
        batches.append(last + np.cumsum(gaps(1024 + int(end - last))))
        last = float(batches[-1][-1])
    times = np.concatenate(batches)
    return times[: np.searchsorted(times, end, side="right")]


class _Clock:
    """Turns clock time into operational time and back, for a rate that is constant piece by piece."""

    def __init__(self, rate_per_s: float, curve: tuple[tuple[float, float], ...]) -> None:
        self.starts_s = np.array([t_s for t_s, _ in curve])
        self.rates = rate_per_s * np.array([factor for _, factor in curve])
        self.starts = np.concatenate([[0.0], np.cumsum(self.rates[:-1] * np.diff(self.starts_s))])

    def operational(self, t_s: float) -> float:
        piece = int(np.searchsorted(self.starts_s, t_s, side="right")) - 1
        return float(self.starts[piece] + self.rates[piece] * (t_s - self.starts_s[piece]))

    def seconds(self, times: Floats) -> Floats:
        # side="left" skips pieces of rate 0, in which operational time stands still; it may give -1 at time 0
        piece = np.maximum(np.searchsorted(self.starts, times, side="left") - 1, 0)
        seconds: Floats = self.starts_s[piece] + (times - self.starts[piece]) / self.rates[piece]
        return seconds


def draw_requests(
    section: SyntheticSection, streams: Streams, max_model_len: int
) -> tuple[RequestTable, list[str]]:
    """The requests of a synthetic workload in order of arrival, and notes about them."""
    match section:
        case OpenLoopSection():
            arrival_s = arrival_times_s(section, streams("arrivals"))
        case BurstWorkload() | ClosedLoopWorkload():
            arrival_s = np.zeros(section.num_requests)
        case _:
            raise TypeError(f"{type(section).__name__} does not say when requests arrive")
    if section.sessions is not None:
        return _sessions(section, section.sessions, arrival_s, streams, max_model_len)
    return _single_requests(section, arrival_s, streams), []


def _single_requests(section: SyntheticSection, arrival_s: Floats, streams: Streams) -> RequestTable:
    count, distinct = len(arrival_s), section.distinct_prompts
    prompt, output, component = draw_lengths(section.lengths, min(count, distinct or count), streams)
    if distinct:
        repeats = np.arange(count) % distinct
        prompt, output, component = prompt[repeats], output[repeats], component[repeats]
    prompts: Prompts = DistinctPrompts(distinct)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, distinct, streams)
    return RequestTable.of(
        arrival_s,
        prompt,
        output,
        prompts=prompts,
        class_index=component,
        class_names=section.class_names,
        priority=_priorities(section)[component],
    )


def _sessions(
    section: SyntheticSection,
    sessions: SessionsSection,
    starts_s: Floats,
    streams: Streams,
    max_model_len: int,
) -> tuple[RequestTable, list[str]]:
    """Each arrival is a first turn; later turns stand where they would come if answers took no time."""
    turns = _draw_turns(sessions, len(starts_s), streams)
    message, output, component = draw_lengths(
        section.lengths, len(turns), streams, session=turns.session if len(turns) else None
    )
    if sessions.next_message is not None:
        normals = streams("sessions.messages").standard_normal(len(turns))
        message = np.where(turns.turn > 0, quantile(sessions.next_message, normals, "prompt"), message)
    group, shared, groups = None, None, 0
    if section.prefixes:
        first = turns.turn == 0
        alone = message[first]
        message[first], prefixed = share_prefixes(section.prefixes, alone, None, streams)
        group, groups = prefixed.group[turns.session], prefixed.groups
        reach = np.where(prefixed.group >= 0, np.minimum(prefixed.prefix_tokens, message[first]), 0)
        shared = reach[turns.session]
    prompt = _growing_prompts(turns, message, output)
    earliest_s = starts_s[turns.session] + np.cumsum(turns.think_s)
    earliest_s -= np.cumsum(turns.think_s)[turns.begins]
    kept = np.flatnonzero(_turns_that_fit(turns, prompt, output, max_model_len))
    notes = _note_cuts(len(turns) - len(kept), turns.session, kept, max_model_len)
    rows = kept[np.argsort(earliest_s[kept], kind="stable")]
    place = np.full(len(turns), -1)
    place[rows] = np.arange(len(rows))
    table = RequestTable.of(
        earliest_s[rows],
        prompt[rows],
        output[rows],
        prompts=SessionPrompts(
            turns.session[rows],
            groups,
            None if group is None else group[rows],
            None if shared is None else shared[rows],
        ),
        class_index=component[rows],
        class_names=section.class_names,
        session=turns.session[rows],
        priority=_priorities(section)[component[rows]],
        turn_after=np.where(turns.turn[rows] > 0, place[rows - 1], -1),
        think_s=turns.think_s[rows],
    )
    return table, notes


def _note_cuts(num_cut: int, session: Ints, kept: Ints, max_model_len: int) -> list[str]:
    if not num_cut:
        return []
    cut = np.bincount(session) > np.bincount(session[kept], minlength=int(session[-1]) + 1)
    return [
        f"{int(cut.sum())} of {len(cut)} sessions end early, before a turn that would exceed max_model_len "
        f"{max_model_len}: {num_cut} turns left out"
    ]


def _priorities(section: SyntheticSection) -> Ints:
    """The priority of each class; `classes` may say otherwise."""
    if isinstance(section.lengths, MixtureLengths):
        return np.array([component.priority for component in section.lengths.components])
    return np.zeros(1, np.int64)


def share_prefixes(
    section: PrefixesSection, prompt: Ints, distinct: int | None, streams: Streams
) -> tuple[Ints, PrefixedPrompts]:
    """Prompt lengths, prefix added where it comes on top, and prompts that begin with a group's prefix."""
    count = len(prompt)
    group = draw_choices(section, section.groups, count, streams("prefixes"))
    if distinct:
        group = group[np.arange(count) % distinct]
    if not section.within_prompt:
        prompt = prompt + np.where(group >= 0, section.prefix_tokens, 0)
    return prompt, PrefixedPrompts(group.astype(np.int32), section.groups, section.prefix_tokens, distinct)


@dataclass(frozen=True, slots=True, eq=False)
class _Turns:
    """All turns, session by session: the session of each, its turn from 0, and the time thought before."""

    session: Ints
    turn: Ints
    think_s: Floats

    def __len__(self) -> int:
        return len(self.session)

    @property
    def begins(self) -> Ints:
        """For each row, the row of its session's first turn."""
        return np.arange(len(self)) - self.turn


def _draw_turns(section: SessionsSection, num_sessions: int, streams: Streams) -> _Turns:
    """The turns of `num_sessions` sessions; nobody thinks before the first."""
    counts = _draw_counts(section.turns, num_sessions, streams("sessions.turns"))
    session = np.repeat(np.arange(num_sessions), counts)
    turn = np.arange(len(session)) - np.repeat(np.cumsum(counts) - counts, counts)
    think_s = np.zeros(len(session))
    if section.think_time_s is not None:
        think_s = draw_times_s(section.think_time_s, len(session), streams("sessions.think"))
        think_s[turn == 0] = 0.0
    return _Turns(session, turn, think_s)


def _draw_counts(section: TurnCount, count: int, rng: np.random.Generator) -> Ints:
    match section:
        case FixedTurns():
            return np.full(count, section.value, np.int64)
        case UniformTurns():
            low, high = section.range
            return rng.integers(low, high, count, endpoint=True, dtype=np.int64)
        case GeometricTurns():
            return rng.geometric(1 / section.mean, count).astype(np.int64)
    raise TypeError(f"{type(section).__name__} is no number of turns")


def _growing_prompts(turns: _Turns, message: Ints, output: Ints) -> Ints:
    """Prompt tokens of each turn: all messages and answers of the session before it, and its own message."""
    said = np.cumsum(message + output)
    begins = turns.begins
    before = said[begins] - message[begins] - output[begins]
    prompt: Ints = said - before - output
    return prompt


def _turns_that_fit(turns: _Turns, prompt: Ints, output: Ints, max_model_len: int) -> Bools:
    """Which turns stay: a session ends before the first turn that exceeds the context, if not with its first.

    A first turn that exceeds it stays alone, for `over_length` to deal with.
    """
    over = np.cumsum(prompt + output > max_model_len)
    begins = turns.begins
    first_is_over = prompt[begins] + output[begins] > max_model_len
    kept: Bools = (over - over[begins] + first_is_over == 0) | (turns.turn == 0)
    return kept
