"""Requests made from distributions: alone, or as turns of sessions."""

from __future__ import annotations

import numpy as np

from sim.random_streams import Streams
from sim.scenario.distributions import MixtureLengths
from sim.scenario.requests import PrefixesSection, SessionsSection
from sim.scenario.workload import (
    BurstWorkload,
    ClosedLoopWorkload,
    OpenLoopSection,
    SyntheticSection,
)
from sim.values import Floats, Ints
from sim.workload.arrivals import arrival_times_s
from sim.workload.drawn import Drawn
from sim.workload.lengths import draw_lengths, quantile
from sim.workload.prompts import DistinctPrompts, PrefixedPrompts, Prompts, SessionPrompts
from sim.workload.sessions import cut_sessions, draw_turns, growing_prompts


def draw_requests(section: SyntheticSection, streams: Streams, max_model_len: int) -> Drawn:
    """The requests of a synthetic workload, in order of arrival."""
    match section:
        case OpenLoopSection():
            arrival_s = arrival_times_s(section, streams("arrivals"))
        case BurstWorkload() | ClosedLoopWorkload():
            arrival_s = np.zeros(section.num_requests)
        case _:
            raise TypeError(f"{type(section).__name__} does not say when requests arrive")
    if section.sessions is not None:
        return _sessions(section, section.sessions, arrival_s, streams, max_model_len)
    return _single_requests(section, arrival_s, streams)


def _single_requests(section: SyntheticSection, arrival_s: Floats, streams: Streams) -> Drawn:
    count, distinct = len(arrival_s), section.distinct_prompts
    prompt, output, component = draw_lengths(section.lengths, min(count, distinct or count), streams)
    if distinct:
        repeats = np.arange(count) % distinct
        prompt, output, component = prompt[repeats], output[repeats], component[repeats]
    prompts: Prompts = DistinctPrompts(distinct)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, distinct, streams)
    return Drawn(
        arrival_s,
        prompt,
        output,
        component,
        _names(section),
        prompts,
        _row_name,
        [],
        priority=_priorities(section)[component],
    )


def _sessions(
    section: SyntheticSection,
    sessions: SessionsSection,
    starts_s: Floats,
    streams: Streams,
    max_model_len: int,
) -> Drawn:
    """Each arrival is a first turn; later turns stand where they would come if answers took no time."""
    turns = draw_turns(sessions, len(starts_s), streams)
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
        assert isinstance(prefixed, PrefixedPrompts)
        group, groups = prefixed.group[turns.session], prefixed.groups
        reach = np.where(prefixed.group >= 0, np.minimum(prefixed.prefix_tokens, message[first]), 0)
        shared = reach[turns.session]
    prompt = growing_prompts(turns, message, output)
    earliest_s = starts_s[turns.session] + np.cumsum(turns.think_s)
    earliest_s -= np.cumsum(turns.think_s)[turns.begins]
    kept = np.flatnonzero(cut_sessions(turns, prompt, output, max_model_len))
    notes = _say_cuts(len(turns) - len(kept), turns.session, kept, max_model_len)
    rows = kept[np.argsort(earliest_s[kept], kind="stable")]
    place = np.full(len(turns), -1)
    place[rows] = np.arange(len(rows))
    return Drawn(
        earliest_s[rows],
        prompt[rows],
        output[rows],
        component[rows],
        _names(section),
        SessionPrompts(
            turns.session[rows],
            groups,
            None if group is None else group[rows],
            None if shared is None else shared[rows],
        ),
        _row_name,
        notes,
        session=turns.session[rows],
        priority=_priorities(section)[component[rows]],
        turn_after=np.where(turns.turn[rows] > 0, place[rows - 1], -1),
        think_s=turns.think_s[rows],
    )


def _say_cuts(num_cut: int, session: Ints, kept: Ints, max_model_len: int) -> list[str]:
    if not num_cut:
        return []
    cut = np.bincount(session) > np.bincount(session[kept], minlength=int(session[-1]) + 1)
    return [
        f"{int(cut.sum())} of {len(cut)} sessions end early, before a turn that would exceed max_model_len "
        f"{max_model_len}: {num_cut} turns left out"
    ]


def _names(section: SyntheticSection) -> tuple[str, ...]:
    if isinstance(section.lengths, MixtureLengths):
        return tuple(component.name for component in section.lengths.components)
    return ("default",)


def _priorities(section: SyntheticSection) -> Ints:
    """The priority of each class; `classes` may say otherwise."""
    if isinstance(section.lengths, MixtureLengths):
        return np.array([component.priority for component in section.lengths.components])
    return np.zeros(1, np.int64)


def _row_name(row: int) -> str:
    return f"request {row}"


def share_prefixes(
    section: PrefixesSection, prompt: Ints, distinct: int | None, streams: Streams
) -> tuple[Ints, Prompts]:
    """Prompt lengths, prefix added where it comes on top, and prompts that begin with a group's prefix."""
    count, rng = len(prompt), streams("prefixes")
    draws = rng.random((count, 2))
    if section.popularity == "cycle":
        group = np.arange(count) % section.groups
    else:
        exponent = section.zipf_exponent if section.popularity == "zipf" else 0.0
        weight = np.cumsum(np.arange(1, section.groups + 1, dtype=float) ** -exponent)
        group = np.minimum(
            np.searchsorted(weight / weight[-1], draws[:, 0], side="right"), section.groups - 1
        )
    group = np.where(draws[:, 1] < section.share, group, -1)
    if distinct:
        group = group[np.arange(count) % distinct]
    if not section.within_prompt:
        prompt = prompt + np.where(group >= 0, section.prefix_tokens, 0)
    return prompt, PrefixedPrompts(group.astype(np.int32), section.groups, section.prefix_tokens, distinct)
