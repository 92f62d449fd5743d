"""From the `workload` section of a scenario to the requests of a run.

First come times, lengths and prompts, from distributions (`synthetic`) or from a trace (`replay`); then what
the engine cannot take is refused or cut, and the clients' other wishes are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from sim.errors import InputError
from sim.random_streams import Streams
from sim.scenario.requests import ClassSection, TimeoutsSection
from sim.scenario.scenario import Scenario
from sim.scenario.workload import (
    ClosedLoopWorkload,
    MixWorkload,
    PlainWorkload,
    TraceWorkload,
    unknown_class,
)
from sim.values import Floats
from sim.workload.draws import draw_choices, draw_times_s
from sim.workload.synthetic import draw_requests
from sim.workload.table import MAX_CLASSES, Client, Limits, RequestTable, Workload

MAX_ARRIVAL_S = 1e9
"""Bound on arrival times, some thirty years: beyond it doubles lose the microseconds of a step."""

_NUM_EXAMPLES = 3


def build_workload(scenario: Scenario, streams: Streams, limits: Limits) -> Workload:
    """The requests of a scenario, the same for the same seed; `InputError` for a trace that cannot be used.

    `limits` says what the engine takes; longer requests are marked `rejected` or cut, as `over_length` asks.
    """
    section = scenario.workload
    if isinstance(section, MixWorkload):
        from sim.workload.mix import mixed  # late: few scenarios mix workloads

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
        table = _by_class(scenario, section.classes, table, streams)
    if section.length_estimate is not None:
        table = replace(table, expected_output_tokens=_guesses(section.length_estimate.sigma, table, streams))
    return replace(workload, table=table)


def _streams_of(part: str, streams: Streams) -> Streams:
    """The streams of one part of a mixed workload."""
    return lambda name: streams(f"{part}.{name}")


def _guesses(sigma: float, table: RequestTable, streams: Streams) -> Floats:
    """Output lengths as a predictor would see them: right in the median, wrong by lognormal noise."""
    noise = streams("estimates").standard_normal(len(table))
    return table.output_tokens.astype(np.float64) * np.exp(sigma * noise)


def _plain(scenario: Scenario, section: PlainWorkload, streams: Streams, limits: Limits) -> Workload:
    """The requests of a workload that is no mix."""
    row_name: Callable[[int], str] = "request {}".format
    if isinstance(section, TraceWorkload):
        from sim.workload.replay import replayed_requests  # late: only who replays a trace needs its readers

        table, row_name, notes = replayed_requests(scenario, section, streams)
    else:
        table, notes = draw_requests(section, streams, limits.max_model_len)
    _check_times(scenario, table, row_name)
    table, over_length_notes = _fit_lengths(table, limits.max_model_len, section.over_length, row_name)
    after = table.turn_after
    rows = np.arange(len(table)) if after is None else np.flatnonzero(after < 0)
    return Workload(
        table=_with_wishes(section, table, streams),
        loop="closed" if isinstance(section, ClosedLoopWorkload) else "open",
        max_concurrency=section.max_concurrency,
        ignore_eos=section.ignore_eos,
        notes=notes + over_length_notes,
        parts=(Client(rows, section.max_concurrency, leaves=not isinstance(section, TraceWorkload)),),
    )


def _check_times(scenario: Scenario, table: RequestTable, row_name: Callable[[int], str]) -> None:
    late = np.flatnonzero(~(table.arrival_s <= MAX_ARRIVAL_S))
    if len(late):
        name, time_s = row_name(int(late[0])), table.arrival_s[late[0]]
        message = f"{name} arrives at {time_s:g} s; the clock goes to {MAX_ARRIVAL_S:g} s"
        raise InputError([scenario.fault("workload", message)])


def _fit_lengths(
    table: RequestTable,
    max_model_len: int,
    rule: Literal["reject", "clip"],
    row_name: Callable[[int], str],
) -> tuple[RequestTable, list[str]]:
    """The table after the rule for requests longer than the engine's context, and what to say about it.

    Clipping cuts the output to the room that the prompt leaves. A prompt that leaves none is cut first, to
    make room for its output, but not below half of the context.
    """
    prompt, output = table.prompt_tokens, table.output_tokens
    over = prompt + output > max_model_len
    if not over.any():
        return table, []
    rows = np.flatnonzero(over)
    examples = "; ".join(
        f"{row_name(row)}: {prompt[row]} prompt + {output[row]} output tokens"
        for row in rows[:_NUM_EXAMPLES].tolist()
    )
    more = f" and {len(rows) - _NUM_EXAMPLES} more" if len(rows) > _NUM_EXAMPLES else ""
    done = "rejected" if rule == "reject" or max_model_len < 2 else "clipped"
    note = f"{len(rows)} of {len(over)} requests exceed max_model_len {max_model_len} and are {done}"
    note += f": {examples}{more}"
    if done == "rejected":
        return replace(table, rejected=over), [note]
    room = np.maximum(np.maximum(max_model_len - output, max_model_len // 2), 1)
    prompt = np.where(over & (prompt >= max_model_len), room, prompt)
    output = np.where(over, max_model_len - prompt, output)
    return replace(table, prompt_tokens=prompt, output_tokens=output), [note]


def _with_wishes(section: PlainWorkload, table: RequestTable, streams: Streams) -> RequestTable:
    """The table with what else requests ask for: an adapter, a grammar, an answer in time."""
    count = len(table)
    if section.timeouts is not None:
        first_s, total_s = _draw_timeouts(section.timeouts, count, streams)
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


def _draw_timeouts(
    section: TimeoutsSection, count: int, streams: Streams, of: str = ""
) -> tuple[Floats, Floats]:
    """After how many seconds from arrival each client hangs up, without a first and without the last token.

    inf: never. `of` names the class where the section is that of a class.
    """
    name = f"timeouts.{of}." if of else "timeouts."
    never = np.full(count, np.inf)
    first, total = (
        never if time is None else draw_times_s(time, count, streams(name + which))
        for which, time in (("first_token", section.first_token_s), ("total", section.total_s))
    )
    return first, total


def _by_class(
    scenario: Scenario, classes: Mapping[str, ClassSection], table: RequestTable, streams: Streams
) -> RequestTable:
    """The table with what its classes say; raises `InputError` for a class that no request is of."""
    names = table.class_names
    faults = [
        scenario.fault(f"workload.classes.{name}", unknown_class(name, names))
        for name in classes
        if name not in names
    ]
    if faults:
        raise InputError(faults)
    priority = table.priority.copy()
    never = np.full(len(table), np.inf)
    first_s = never.copy() if table.first_token_timeout_s is None else table.first_token_timeout_s.copy()
    total_s = never.copy() if table.timeout_s is None else table.timeout_s.copy()
    for name, section in classes.items():
        rows = table.class_index == names.index(name)
        if section.priority is not None:
            priority[rows] = section.priority
        if section.timeouts is not None:
            first_s[rows], total_s[rows] = _draw_timeouts(section.timeouts, int(rows.sum()), streams, name)
    return replace(
        table,
        priority=priority,
        first_token_timeout_s=first_s if np.isfinite(first_s).any() else None,
        timeout_s=total_s if np.isfinite(total_s).any() else None,
    )
