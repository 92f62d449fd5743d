"""For those who want to see everybody: a step with the members of the cohort named in it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.output import OUTPUT_FIELDS, EngineCoreOutputs, RequestOutput, SchedulerOutput
from scheduler.request import Request


def expand(output: SchedulerOutput, running: Sequence[Request], clock: int) -> SchedulerOutput:
    """The step just planned as the ordinary walk would have written it. Call before anything happens.

    `running` is the running list, with every request's counts written back, and `clock` the cohort's.
    """
    full = SchedulerOutput(output.token_budget)
    for name in OUTPUT_FIELDS:
        setattr(full, name, getattr(output, name))
    full.num_steady = full.steady_computed_tokens = full.most_steady_computed_tokens = 0
    named = {request: i for i, request in enumerate(output.requests)}
    full.requests, full.num_scheduled_tokens, full.num_computed_before, full.samples = [], [], [], []
    for request in running:
        i, member = named.get(request), request.member
        if i is None and (member is None or not output.num_steady):
            continue
        full.requests.append(request)
        if i is not None:
            full.num_scheduled_tokens.append(output.num_scheduled_tokens[i])
            full.num_computed_before.append(output.num_computed_before[i])
            full.samples.append(output.samples[i])
        elif member is not None:
            full.num_scheduled_tokens.append(1)
            full.num_computed_before.append(member.base + clock - 1)
            full.samples.append(True)
    return full


def expand_outputs(
    output: SchedulerOutput, full: SchedulerOutput, outputs: EngineCoreOutputs
) -> EngineCoreOutputs:
    """What the update of a step told, members included; `full`: the step expanded. Call right after."""
    told = {entry[0]: entry for entry in outputs.entries}
    entries: list[RequestOutput] = []
    for request in full.requests:
        if request in told:
            entries.append(told.pop(request))
        elif request.member is not None and request not in output.requests:
            entries.append((request, 1, None))
    return EngineCoreOutputs([*entries, *told.values()], outputs.finished_by_client)
