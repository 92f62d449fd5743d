"""From the `workload` section of a scenario to the table of its requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim.random_streams import Streams
from sim.scenario.lengths import MixtureLengths
from sim.scenario.prefixes import PrefixesSection
from sim.scenario.scenario import Scenario
from sim.scenario.workload import ClosedLoopWorkload, OpenLoopSection, SyntheticSection, TraceWorkload
from sim.workload.arrivals import arrival_times_s
from sim.workload.lengths import draw_lengths
from sim.workload.over_length import fit_lengths
from sim.workload.prompts import DistinctPrompts, PrefixedPrompts, Prompts
from sim.workload.table import Limits, RequestTable, Workload


def build_workload(scenario: Scenario, streams: Streams, limits: Limits) -> Workload:
    """The requests of a scenario, the same for the same seed; raises `InputError` for a trace that cannot be used.

    `limits` says what the engine takes; longer requests are marked `rejected` or cut, as `over_length` asks.
    """
    section = scenario.workload
    assert not isinstance(section, TraceWorkload)
    table, notes = _synthetic(section, streams, limits)
    return Workload(
        table=table,
        loop="closed" if isinstance(section, ClosedLoopWorkload) else "open",
        max_concurrency=section.max_concurrency,
        ignore_eos=section.ignore_eos,
        notes=notes,
    )


def _synthetic(section: SyntheticSection, streams: Streams, limits: Limits) -> tuple[RequestTable, list[str]]:
    if isinstance(section, OpenLoopSection):
        arrival_s = arrival_times_s(section, streams("arrivals"))
    else:
        arrival_s = np.zeros(section.num_requests)
    count = len(arrival_s)
    prompt, output, component = draw_lengths(section.lengths, count, streams)
    names = ("default",)
    if isinstance(section.lengths, MixtureLengths):
        names = tuple(each.name for each in section.lengths.components)
    prompts: Prompts = DistinctPrompts(section.distinct_prompts)
    if section.distinct_prompts:
        repeats = np.arange(count) % section.distinct_prompts
        prompt, output, component = prompt[repeats], output[repeats], component[repeats]
    if section.prefixes:
        prompt, prompts = share_prefixes(section.prefixes, prompt, section.distinct_prompts, streams)
    prompt, output, rejected, notes = fit_lengths(
        prompt, output, limits.max_model_len, section.over_length, lambda row: f"request {row}"
    )
    table = RequestTable(
        arrival_s=arrival_s,
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        class_index=component,
        class_names=names,
        session=np.full(count, -1, np.int64),
        priority=np.zeros(count, np.int32),
        rejected=rejected,
        prompts=prompts,
    )
    return table, notes


def share_prefixes(
    section: PrefixesSection, prompt: npt.NDArray[np.int64], distinct: int | None, streams: Streams
) -> tuple[npt.NDArray[np.int64], Prompts]:
    """Prompt lengths with the prefix added where it comes on top, and prompts that begin with their group's prefix."""
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
