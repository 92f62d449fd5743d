"""From the rows of a trace to requests: in order, from t = 0, at the rate asked for, repairs noted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.errors import InputError, input_error
from sim.random_streams import Streams
from sim.scenario.scenario import Scenario
from sim.scenario.workload import DEFAULT_CLASS, TraceWorkload
from sim.values import Floats, Ints
from sim.workload.prompts import DistinctPrompts, HashedPrompts, Prompts, SessionPrompts
from sim.workload.synthetic import share_prefixes
from sim.workload.table import MAX_CLASSES, RequestTable, TraceRows
from sim.workload.trace_reader import TraceWindow, read_trace


def replayed_requests(
    scenario: Scenario, section: TraceWorkload, streams: Streams
) -> tuple[RequestTable, Callable[[int], str], list[str]]:
    """The requests of a trace, what to call a row (file and line), and notes on what was repaired.

    Raises `InputError` with every fault of the trace, each at its line.
    """
    rows = _rows(scenario, section, streams)
    prompt, prompts = rows.prompt_tokens, _prompts(scenario, section, rows)
    after = None
    if section.follow_sessions:
        after, text = _turns(rows.sessions, prompt, rows.output_tokens)
        if isinstance(prompts, DistinctPrompts):
            prompts = SessionPrompts(text)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, None, streams)
    names, class_index = rows.class_names, rows.classes
    if (class_index < 0).any():
        names, class_index = (*names, DEFAULT_CLASS), np.where(class_index < 0, len(names), class_index)
    if len(names) > MAX_CLASSES:
        raise input_error(f"has {len(names):,} classes; at most {MAX_CLASSES:,}", where=section.path)
    table = RequestTable.of(
        rows.time_s,
        prompt,
        rows.output_tokens,
        prompts=prompts,
        class_index=class_index,
        class_names=names,
        session=rows.sessions,
        priority=rows.priority,
        turn_after=after,
        think_s=None if after is None else np.zeros(len(rows)),
    )
    return table, lambda row: f"{section.path}:{rows.line[row]}", rows.notes


def _rows(scenario: Scenario, section: TraceWorkload, streams: Streams) -> TraceRows:
    """The rows to replay, in order of time; `time_s` is the arrival in the run."""
    if section.end_s is not None and section.end_s <= section.start_s:
        message = f"must be after start_s {section.start_s:g}"
        raise InputError([scenario.fault("workload.end_s", message)])
    window = TraceWindow(section.start_s, section.end_s, section.num_requests)
    rows = read_trace(
        section.path,
        section.format,
        window,
        block_tokens=section.hash_block_tokens,
        named=scenario.fault("workload.path", ""),
    )
    rows = _in_order(rows)
    rows.time_s = rows.time_s - (section.start_s or rows.time_s[0])
    if section.spread_ticks_s is not None:
        rows = _spread(rows, section.spread_ticks_s, streams)
    if section.num_requests is not None:
        rows = rows.take(np.arange(min(section.num_requests, len(rows))))
    _note_repeats(rows)
    rows.time_s = rows.time_s * _time_factor(scenario, section, rows.time_s)
    return rows


def _in_order(rows: TraceRows) -> TraceRows:
    late = int((np.diff(rows.time_s) < 0).sum())
    if not late:
        return rows
    first = int(np.flatnonzero(np.diff(rows.time_s) < 0)[0]) + 1
    rows.notes.append(
        f"not in order of time: {late:,} of {len(rows):,} rows come before the row above them, "
        f"the first at line {rows.line[first]}; sorted"
    )
    return rows.take(np.argsort(rows.time_s, kind="stable"))


def _spread(rows: TraceRows, tick_s: float, streams: Streams) -> TraceRows:
    """Each time moved to its nearest tick and from there by a random part of a tick."""
    ticks = np.floor(rows.time_s / tick_s + 0.5) * tick_s
    rows.time_s = ticks + tick_s * streams("arrivals").random(len(rows))
    rows.notes.append(f"times spread at random over ticks of {tick_s:g} s")
    return rows.take(np.argsort(rows.time_s, kind="stable"))


def _note_repeats(rows: TraceRows) -> None:
    repeats = int((np.diff(rows.time_s) == 0).sum())
    if repeats:
        rows.notes.append(
            f"{repeats:,} requests arrive at the very time of the one before them; kept in file order"
        )


def _time_factor(scenario: Scenario, section: TraceWorkload, time_s: Floats) -> float:
    """What to multiply times with."""
    if section.time_scale is not None:
        return section.time_scale
    if section.rate_scale is not None:
        return 1 / section.rate_scale
    if section.rate_per_s is None:
        return 1.0
    span_s = float(time_s[-1] - time_s[0])
    if span_s == 0:
        raise InputError(
            [scenario.fault("workload.rate_per_s", "all requests of the trace arrive at one time")]
        )
    return (len(time_s) - 1) / span_s / section.rate_per_s


def _prompts(scenario: Scenario, section: TraceWorkload, rows: TraceRows) -> Prompts:
    if rows.hash_ids is None or rows.num_hashes is None or not rows.num_hashes.any():
        return DistinctPrompts()
    if section.prefixes:
        message = "the trace says itself which blocks its prompts share"
        raise InputError([scenario.fault("workload.prefixes", message)])
    offsets = np.concatenate([[0], np.cumsum(rows.num_hashes)])
    return HashedPrompts(rows.hash_ids, offsets, rows.block_tokens or section.hash_block_tokens)


def _turns(session: Ints, prompt: Ints, output: Ints) -> tuple[Ints, Ints]:
    """For rows of a trace in order of time: the row of the turn before each (-1: none), and its text.

    A prompt that is at least as long as the prompt and output before it repeats them and goes on; a shorter
    one begins a new text. Texts are numbered by the row that begins them.
    """
    count = len(session)
    order = np.lexsort((np.arange(count), session))
    before = np.concatenate([[-1], order[:-1]])
    same = np.concatenate([[False], session[order][1:] == session[order][:-1]]) & (session[order] >= 0)
    goes_on = same & (prompt[order] >= (prompt + output)[before])
    begin = np.maximum.accumulate(np.where(goes_on, 0, np.arange(count)))
    after, text = np.empty(count, np.int64), np.empty(count, np.int64)
    after[order] = np.where(same, before, -1)
    text[order] = order[begin]
    return after, text
