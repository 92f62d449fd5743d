"""From the rows of a trace to requests: in order, from t = 0, at the rate asked for; repairs are told."""

from __future__ import annotations

import numpy as np

from sim.errors import InputError
from sim.random_streams import Streams
from sim.scenario.scenario import Scenario
from sim.scenario.workload import TraceWorkload
from sim.values import Floats
from sim.workload.traces.read import TraceWindow, read_trace
from sim.workload.traces.rows import TraceRows


def replayed_rows(scenario: Scenario, section: TraceWorkload, streams: Streams) -> TraceRows:
    """The rows to replay, `time_s` being the arrival time in the run, rising; notes say what was repaired.

    Raises `InputError` with every fault of the trace, each at its line.
    """
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
    _say_repeats(rows)
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


def _say_repeats(rows: TraceRows) -> None:
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
