"""From the `workload` section of a scenario to the table of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.errors import InputError, input_error
from sim.random_streams import Streams
from sim.scenario.lengths import MixtureLengths
from sim.scenario.prefixes import PrefixesSection
from sim.scenario.scenario import Scenario
from sim.scenario.workload import (
    BurstWorkload,
    ClosedLoopWorkload,
    OpenLoopSection,
    RequestsSection,
    SyntheticSection,
    TraceWorkload,
)
from sim.workload.arrivals import arrival_times_s
from sim.workload.lengths import draw_lengths
from sim.workload.over_length import fit_lengths
from sim.workload.prompts import DistinctPrompts, HashedPrompts, PrefixedPrompts, Prompts
from sim.workload.replay import replayed_rows
from sim.workload.table import Limits, RequestTable, Workload
from sim.workload.traces import TraceRows

Ints = npt.NDArray[np.int64]
MAX_CLASSES = 32_767


def build_workload(scenario: Scenario, streams: Streams, limits: Limits) -> Workload:
    """The requests of a scenario, the same for the same seed; `InputError` for a trace that cannot be used.

    `limits` says what the engine takes; longer requests are marked `rejected` or cut, as `over_length` asks.
    """
    section = scenario.workload
    if isinstance(section, TraceWorkload):
        drawn = _replayed(scenario, section, streams)
    else:
        drawn = _synthetic(section, streams)
    prompt, output, rejected, notes = fit_lengths(
        drawn.prompt, drawn.output, limits.max_model_len, section.over_length, drawn.row_name
    )
    count = len(prompt)
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
        expected_output_tokens=_guesses(section, output, streams),
    )
    return Workload(
        table=table,
        loop="closed" if isinstance(section, ClosedLoopWorkload) else "open",
        max_concurrency=section.max_concurrency,
        ignore_eos=section.ignore_eos,
        notes=drawn.notes + notes,
    )


def _guesses(section: RequestsSection, output: Ints, streams: Streams) -> npt.NDArray[np.float64] | None:
    """Output lengths as a predictor would see them: right in the median, wrong by lognormal noise."""
    if section.length_estimate is None:
        return None
    noise = streams("estimates").standard_normal(len(output))
    return output.astype(np.float64) * np.exp(section.length_estimate.sigma * noise)


@dataclass(slots=True, eq=False)
class _Drawn:
    """Requests before they meet the limits of the engine."""

    arrival_s: npt.NDArray[np.float64]
    prompt: Ints
    output: Ints
    class_index: npt.NDArray[np.integer]
    class_names: tuple[str, ...]
    prompts: Prompts
    row_name: Callable[[int], str]
    notes: list[str]
    session: Ints | None = None
    priority: Ints | None = None


def _synthetic(section: SyntheticSection, streams: Streams) -> _Drawn:
    match section:
        case OpenLoopSection():
            arrival_s = arrival_times_s(section, streams("arrivals"))
        case BurstWorkload() | ClosedLoopWorkload():
            arrival_s = np.zeros(section.num_requests)
        case _:
            raise TypeError(f"{type(section).__name__} does not say when requests arrive")
    count, distinct = len(arrival_s), section.distinct_prompts
    prompt, output, component = draw_lengths(section.lengths, min(count, distinct or count), streams)
    if distinct:
        repeats = np.arange(count) % distinct
        prompt, output, component = prompt[repeats], output[repeats], component[repeats]
    prompts: Prompts = DistinctPrompts(distinct)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, distinct, streams)
    names: tuple[str, ...] = ("default",)
    priority = None
    if isinstance(section.lengths, MixtureLengths):
        names = tuple(each.name for each in section.lengths.components)
        priority = np.array([each.priority for each in section.lengths.components])[component]
    return _Drawn(
        arrival_s,
        prompt,
        output,
        component,
        names,
        prompts,
        lambda row: f"request {row}",
        [],
        priority=priority,
    )


def _replayed(scenario: Scenario, section: TraceWorkload, streams: Streams) -> _Drawn:
    rows = replayed_rows(scenario, section, streams)
    prompt, prompts = rows.prompt_tokens, _trace_prompts(scenario, section, rows)
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, None, streams)
    names, class_index = rows.class_names, rows.classes
    if (class_index < 0).any():
        names, class_index = (*names, "default"), np.where(class_index < 0, len(names), class_index)
    if len(names) > MAX_CLASSES:
        raise input_error(f"has {len(names):,} classes; at most {MAX_CLASSES:,}", where=section.path)
    return _Drawn(
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
    )


def _trace_prompts(scenario: Scenario, section: TraceWorkload, rows: TraceRows) -> Prompts:
    if rows.hash_ids is None or rows.num_hashes is None or not rows.num_hashes.any():
        return DistinctPrompts()
    if section.prefixes:
        message = "the trace says itself which blocks its prompts share"
        raise InputError([scenario.fault("workload.prefixes", message)])
    offsets = np.concatenate([[0], np.cumsum(rows.num_hashes)])
    return HashedPrompts(rows.hash_ids, offsets, section.hash_block_tokens)


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
