"""Results by group of requests: by client class, by LoRA adapter. Each group is judged by its own SLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.cluster.recorder import RequestLog, Status
from sim.results.metrics import RequestTimes, attainment, mean_and_std, percentile, sample
from sim.scenario import Scenario, SloTarget
from sim.scenario.workload import WorkloadSection
from sim.values import Bools, Floats, Json, finite
from sim.workload import RequestTable

Targets = Sequence[SloTarget]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The requests of one group, marked in `rows`, and what they were promised."""

    name: str
    rows: Bools
    targets: Targets


def class_groups(scenario: Scenario, table: RequestTable) -> list[Group]:
    """The client classes; one without an SLO of its own has the scenario's."""
    sections, everyone = scenario.workload.classes or {}, _targets(scenario)
    groups = []
    for number, name in enumerate(table.class_names):
        section = sections.get(name)
        own = None if section is None or section.slo is None else section.slo.targets
        groups.append(Group(name, table.class_index == number, everyone if own is None else own))
    return groups


def adapter_groups(scenario: Scenario, table: RequestTable) -> list[Group]:
    """The LoRA adapters that requests asked for, most popular first, and the requests without one."""
    if table.adapter is None:
        return []
    counts = np.bincount(table.adapter + 1, minlength=len(table.adapter_names) + 1)
    asked = [number for number in np.argsort(-counts[1:], kind="stable") if counts[number + 1]]
    names = [(table.adapter_names[number], number) for number in asked]
    if counts[0]:
        names.append(("(base model)", -1))
    return [Group(name, table.adapter == number, _targets(scenario)) for name, number in names]


def has_class_slos(section: WorkloadSection) -> bool:
    """Whether any class has an SLO of its own."""
    return any(each.slo is not None for each in (section.classes or {}).values())


def group_table(
    groups: Sequence[Group], times: RequestTimes, log: RequestLog, aborted_s: Mapping[int, float]
) -> dict[str, Json]:
    """A row for each group, of measured requests; keys as in `summary.json` where it has them.

    `token_share`: of all prompt and output tokens of finished requests. `max_wait_s`: the longest time from
    an arrival to its first scheduling, or for those never scheduled to their abort (`aborted_s`, by id) or
    the end of the run.
    """
    tokens = np.where(times.done, times.prompt_tokens + times.output_tokens, 0)
    left_s = np.full(len(times.arrival_s), times.end_s)
    left_s[list(aborted_s)] = list(aborted_s.values())
    scheduled_s = np.array(log.first_scheduled_s)
    waited_s = np.where(np.isnan(scheduled_s), left_s, scheduled_s) - times.arrival_s
    preemptions = np.array(log.num_preemptions)
    total = int(tokens.sum())
    table: dict[str, Json] = {}
    for group in groups:
        of = replace(times, measured=times.measured & group.rows)
        came = of.measured & (of.status != Status.REJECTED)
        failed = of.measured & ((of.status == Status.ABORTED) | (of.status == Status.REJECTED))
        row: dict[str, Json] = {
            "num_requests": int(of.measured.sum()),
            "completed": int(of.done.sum()),
            "failed": int(failed.sum()),
            "token_share": int(tokens[group.rows].sum()) / total if total else 0.0,
            "num_preemptions": int(preemptions[of.measured].sum()),
            "max_wait_s": finite(float(waited_s[came].max(initial=0.0))),
        }
        for metric, values_s in (("ttft", of.ttft_s), ("tpot", of.tpot_s), ("e2el", of.e2e_s)):
            row |= _statistics(metric, values_s[of.done])
        judged = attainment(of, group.targets)
        row["slo_attainment"] = finite(judged.joint) if group.targets else None
        table[group.name] = row
    return table


def joint_attainment(groups: Sequence[Group], times: RequestTimes, duration_s: float) -> dict[str, Json]:
    """The summary's figures of attainment where every group has its own SLO."""
    judged = [
        attainment(replace(times, measured=times.measured & group.rows), group.targets)
        for group in groups
        if group.targets
    ]
    good, size = sum(each.num_good for each in judged), sum(each.num_judged for each in judged)
    return {
        "slo_attainment": good / size if size else None,
        "slo_judged_requests": size,
        "request_goodput": good / duration_s if duration_s > 0 else 0.0,
    }


def jain_index(groups: Sequence[Group], times: RequestTimes) -> float | None:
    """Jain's index of the speeds that groups see: 1 if all are equal, 1/n if one of n gets everything.

    A group's speed is its mean of output tokens over E2E latency.
    """
    speeds = []
    for group in groups:
        done = times.done & group.rows & (times.e2e_s > 0)
        if done.any():
            speeds.append(float((times.output_tokens[done] / times.e2e_s[done]).mean()))
    squares = sum(speed * speed for speed in speeds)
    return sum(speeds) ** 2 / (len(speeds) * squares) if squares else None


def _targets(scenario: Scenario) -> Targets:
    return () if scenario.slo is None else scenario.slo.targets


def _statistics(metric: str, values_s: Floats) -> dict[str, Json]:
    of = sample(values_s)
    numbers = {"mean": mean_and_std(of)[0], "median": percentile(of, 50), "p99": percentile(of, 99)}
    return {f"{name}_{metric}_ms": finite(1000.0 * seconds) for name, seconds in numbers.items()}
