"""From the `workload` section of a scenario to the table of its requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.errors import InputError, input_error
from sim.random_streams import Streams
from sim.scenario.scenario import Scenario
from sim.scenario.workload import ClosedLoopWorkload, MixWorkload, PlainWorkload, TraceWorkload
from sim.workload.choices import draw_choices
from sim.workload.classes import by_class, draw_timeouts
from sim.workload.drawn import Drawn
from sim.workload.over_length import fit_lengths
from sim.workload.prompts import DistinctPrompts, HashedPrompts, Prompts, SessionPrompts
from sim.workload.sessions import turns_in_trace
from sim.workload.synthetic import draw_requests, share_prefixes
from sim.workload.table import Client, Limits, RequestTable, Workload

if TYPE_CHECKING:
    from sim.workload.traces.rows import TraceRows

MAX_CLASSES = 32_767
MAX_ARRIVAL_S = 1e9
"""Bound on arrival times, some thirty years: beyond it doubles lose the microseconds of a step."""


def build_workload(scenario: Scenario, streams: Streams, limits: Limits) -> Workload:
    """The requests of a scenario, the same for the same seed; `InputError` for a trace that cannot be used.

    `limits` says what the engine takes; longer requests are marked `rejected` or cut, as `over_length` asks.
    """
    section = scenario.workload
    if isinstance(section, MixWorkload):
        from sim.workload.mix import mixed

        parts = {
            name: _plain(scenario.part(name), part, _streams_of(name, streams), limits)
            for name, part in section.workloads.items()
        }
        if sum(len(part.table.class_names) for part in parts.values()) > MAX_CLASSES:
            message = f"have more than {MAX_CLASSES:,} classes together"
            raise InputError([scenario.fault("workload.workloads", message)])
        workload = mixed(parts, ignore_eos=section.ignore_eos)
    else:
        workload = _plain(scenario, section, streams, limits)
    table = workload.table
    if section.classes:
        table = by_class(scenario, section.classes, table, streams)
    if section.length_estimate is not None:
        table = replace(table, expected_output_tokens=_guesses(section.length_estimate.sigma, table, streams))
    return replace(workload, table=table)


def _streams_of(part: str, streams: Streams) -> Streams:
    """The streams of one part of a mixed workload."""
    return lambda name: streams(f"{part}.{name}")


def _guesses(sigma: float, table: RequestTable, streams: Streams) -> npt.NDArray[np.float64]:
    """Output lengths as a predictor would see them: right in the median, wrong by lognormal noise."""
    noise = streams("estimates").standard_normal(len(table))
    return table.output_tokens.astype(np.float64) * np.exp(sigma * noise)


def _plain(scenario: Scenario, section: PlainWorkload, streams: Streams, limits: Limits) -> Workload:
    """A workload that is no mix."""
    if isinstance(section, TraceWorkload):
        drawn = _replayed(scenario, section, streams)
    else:
        drawn = draw_requests(section, streams, limits.max_model_len)
    _check_times(scenario, drawn)
    prompt, output, rejected, notes = fit_lengths(
        drawn.prompt, drawn.output, limits.max_model_len, section.over_length, drawn.row_name
    )
    count, after = len(prompt), drawn.turn_after
    table = RequestTable(
        arrival_s=drawn.arrival_s,
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        class_index=drawn.class_index.astype(np.int16),
        class_names=drawn.class_names,
        session=np.full(count, -1, np.int64) if drawn.session is None else drawn.session,
        priority=np.zeros(count, np.int32) if drawn.priority is None else drawn.priority.astype(np.int32),
        rejected=rejected,
        prompts=drawn.prompts,
        turn_after=after,
        think_s=drawn.think_s,
    )
    rows = np.arange(count) if after is None else np.flatnonzero(after < 0)
    return Workload(
        table=_with_wishes(section, table, streams),
        loop="closed" if isinstance(section, ClosedLoopWorkload) else "open",
        max_concurrency=section.max_concurrency,
        ignore_eos=section.ignore_eos,
        notes=drawn.notes + notes,
        parts=(Client(rows, section.max_concurrency, leaves=not isinstance(section, TraceWorkload)),),
    )


def _check_times(scenario: Scenario, drawn: Drawn) -> None:
    late = np.flatnonzero(~(drawn.arrival_s <= MAX_ARRIVAL_S))
    if len(late):
        name, time_s = drawn.row_name(int(late[0])), drawn.arrival_s[late[0]]
        message = f"{name} arrives at {time_s:g} s; the clock goes to {MAX_ARRIVAL_S:g} s"
        raise InputError([scenario.fault("workload", message)])


def _with_wishes(section: PlainWorkload, table: RequestTable, streams: Streams) -> RequestTable:
    """The table with what else requests ask for: an adapter, a grammar, an answer in time."""
    count = len(table)
    if section.timeouts is not None:
        first_s, total_s = draw_timeouts(section.timeouts, count, streams)
        table = replace(table, first_token_timeout_s=first_s, timeout_s=total_s)
    if section.lora is not None:
        asker = table.session if table.turn_after is not None else np.arange(count)
        number = section.lora.num_adapters
        adapter = draw_choices(section.lora, number, int(asker.max(initial=-1)) + 1, streams("lora"))[asker]
        names = tuple(f"adapter-{k}" for k in range(number))
        table = replace(table, adapter=adapter.astype(np.int32), adapter_names=names)
    if section.grammar is not None:
        grammar = draw_choices(section.grammar, section.grammar.num_grammars, count, streams("grammar"))
        table = replace(table, grammar=grammar)
    return table


def _replayed(scenario: Scenario, section: TraceWorkload, streams: Streams) -> Drawn:
    from sim.workload.replay import replayed_rows  # late: the readers of traces are for those who replay one

    rows = replayed_rows(scenario, section, streams)
    prompt, prompts = rows.prompt_tokens, _trace_prompts(scenario, section, rows)
    after = None
    if section.follow_sessions:
        after, text = turns_in_trace(rows.sessions, prompt, rows.output_tokens)
        if isinstance(prompts, DistinctPrompts):
            prompts = SessionPrompts(text)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, None, streams)
    names, class_index = rows.class_names, rows.classes
    if (class_index < 0).any():
        names, class_index = (*names, "default"), np.where(class_index < 0, len(names), class_index)
    if len(names) > MAX_CLASSES:
        raise input_error(f"has {len(names):,} classes; at most {MAX_CLASSES:,}", where=section.path)
    return Drawn(
        rows.time_s,
        prompt,
        rows.output_tokens,
        class_index,
        names,
        prompts,
        lambda row: f"{section.path}:{rows.line[row]}",
        rows.notes,
        rows.sessions,
        rows.priority,
        turn_after=after,
        think_s=None if after is None else np.zeros(len(rows)),
    )


def _trace_prompts(scenario: Scenario, section: TraceWorkload, rows: TraceRows) -> Prompts:
    if rows.hash_ids is None or rows.num_hashes is None or not rows.num_hashes.any():
        return DistinctPrompts()
    if section.prefixes:
        message = "the trace says itself which blocks its prompts share"
        raise InputError([scenario.fault("workload.prefixes", message)])
    offsets = np.concatenate([[0], np.cumsum(rows.num_hashes)])
    return HashedPrompts(rows.hash_ids, offsets, section.hash_block_tokens)
