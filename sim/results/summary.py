"""`summary.json`: the keys of `vllm bench serve --save-result`, then ours, without any wall-clock time.

All latencies end in `_ms`, all other times in `_s`, except vLLM's own `duration` (s). Numbers describe the
measured requests, those that arrived at or after `warmup_s`; the `num_*` counts of ours describe the whole
run and add up. A statistic of nothing is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cost_models.step_cost import BOUNDS
from sim.cluster.recorder import Recorder, RequestLog, Status, StepTotals, TokenTimes, add_histograms
from sim.results.metrics import (
    PERCENTILES,
    VLLM_NAMES,
    Attainment,
    RequestTimes,
    Sample,
    attainment,
    inter_token_gaps,
    is_thin,
    mean_and_std,
    peak_concurrency,
    peak_token_rate,
    percentile,
    percentiles_over_time,
    sample,
)
from sim.scenario import Scenario, SloTarget
from sim.values import Bools, Floats, Json, finite
from sim.workload import RequestTable


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Sums over all engines of a run, as the schedulers counted them."""

    num_gpu_blocks: int
    prefix_queries_tokens: int
    prefix_hits_tokens: int
    num_preemptions: int


def summarize(
    recorder: Recorder,
    tokens: TokenTimes,
    times: RequestTimes,
    *,
    warmup_s: float,
    targets: Mapping[str, SloTarget],
    engines: EngineTotals,
    rejections: Mapping[str, int],
    num_gpus: int,
) -> dict[str, Json]:
    """All numbers of a finished run; `targets` are the SLO targets by their keys."""
    judged = attainment(times, list(targets.values())) if targets else None
    summary: dict[str, Json] = {}
    summary |= _throughput(recorder, tokens, times, judged)
    summary |= _latencies(recorder, tokens, times)
    summary |= _slo(judged, targets)
    summary |= _requests(times, rejections)
    summary |= _engine(recorder, times, engines, warmup_s)
    summary["output_throughput_per_gpu"] = float(summary["output_throughput"]) / num_gpus  # type: ignore[arg-type]
    return summary


def _throughput(
    recorder: Recorder, tokens: TokenTimes, times: RequestTimes, judged: Attainment | None
) -> dict[str, Json]:
    """vLLM's counts and rates: from the first measured arrival to the last token of a finished request."""
    done = times.done
    count = int(done.sum())
    first_s = times.arrival_s[times.measured].min() if times.measured.any() else 0.0
    duration_s = float(times.last_token_s[done].max() - first_s) if count else 0.0
    prompt, output = int(times.prompt_tokens[done].sum()), int(times.output_tokens[done].sum())
    rate = 1.0 / duration_s if duration_s > 0 else 0.0
    failed = times.measured & ((times.status == Status.ABORTED) | (times.status == Status.REJECTED))
    return {
        "duration": duration_s,
        "completed": count,
        "failed": int(failed.sum()),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": count * rate,
        "request_goodput": None if judged is None else judged.num_good * rate,
        "output_throughput": output * rate,
        "total_token_throughput": (prompt + output) * rate,
        "max_output_tokens_per_s": peak_token_rate(recorder, tokens, times),
        "max_concurrent_requests": peak_concurrency(times),
        "rtfx": 0.0,
    }


def _latencies(recorder: Recorder, tokens: TokenTimes, times: RequestTimes) -> dict[str, Json]:
    done = times.done
    samples = {
        "ttft": sample(times.ttft_s[done]),
        "tpot": sample(times.tpot_s[done]),
        "itl": inter_token_gaps(recorder, tokens, done),
        "e2e": sample(times.e2e_s[done]),
    }
    waited_s = np.array(recorder.requests.client_queue_s)[done]
    if waited_s.any():
        samples["client_queue_time"] = sample(waited_s)
    found: dict[str, Json] = {}
    thin: list[str] = []
    for metric, of in samples.items():
        found |= _statistics(metric, of, ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES)))
        thin += [f"p{p}_{_vllm_name(metric)}_ms" for p in PERCENTILES if is_thin(of.size, p)]
    found["thin_percentiles"] = thin
    return found


def _statistics(metric: str, of: Sample, names: Sequence[str]) -> dict[str, Json]:
    """The named statistics of a latency in ms, under vLLM's keys, such as `p99_ttft_ms`."""
    mean_s, std_s = mean_and_std(of)
    numbers = {"mean": mean_s, "std": std_s, "median": percentile(of, 50)}
    for name in names:
        if name not in numbers:
            numbers[name] = percentile(of, float(name.removeprefix("p")))
    return {f"{name}_{_vllm_name(metric)}_ms": finite(numbers[name] * 1000.0) for name in names}


def _vllm_name(metric: str) -> str:
    return VLLM_NAMES.get(metric, metric)


def _slo(judged: Attainment | None, targets: Mapping[str, SloTarget]) -> dict[str, Json]:
    if judged is None:
        return {"slo": None, "slo_attainment": None}
    single = {
        key: {
            "limit_s": target.limit_s,
            "attainment": finite(share),
            "met": _met(share, target),
        }
        for (key, target), share in zip(targets.items(), judged.by_target, strict=True)
    }
    return {"slo": single, "slo_attainment": finite(judged.joint), "slo_judged_requests": judged.num_judged}


def _met(share: float, target: SloTarget) -> bool | None:
    """None where there is no verdict: of a target without a percentile, and if no request was judged."""
    if target.percentile is None or np.isnan(share):
        return None
    return bool(share >= target.percentile / 100.0)


def _requests(times: RequestTimes, rejections: Mapping[str, int]) -> dict[str, Json]:
    """How every request of the workload ended; the five counts add up to `num_requests`."""
    count = np.bincount(times.status, minlength=len(Status))
    return {
        "num_requests": len(times.status),
        "num_finished": int(count[Status.FINISHED]),
        "num_aborted": int(count[Status.ABORTED]),
        "num_rejected": int(count[Status.REJECTED]),
        "num_in_flight": int(count[Status.IN_FLIGHT]),
        "num_not_sent": int(count[Status.NOT_SENT]),
        "rejections": dict(sorted(rejections.items())),
        "clock_s": times.end_s,
    }


def _engine(
    recorder: Recorder, times: RequestTimes, engines: EngineTotals, warmup_s: float
) -> dict[str, Json]:
    totals = [log.totals() for log in recorder.steps]
    computed = sum(t.decode_tokens + t.prefill_tokens + t.recompute_tokens for t in totals)
    recomputed = sum(t.recompute_tokens for t in totals)
    window_s = max(times.end_s - warmup_s, 0.0)
    blocks = _time_by_number(totals, "time_by_used_blocks_s", window_s)
    running = _time_by_number(totals, "time_by_num_running_s", window_s)
    p50, p95 = percentiles_over_time(blocks, (50, 95))
    running_p50, running_p95 = percentiles_over_time(running, (50, 95))
    by_bound_s = sum((t.time_by_bound_s for t in totals), np.zeros(len(BOUNDS)))
    busy_s = float(by_bound_s.sum())
    queries = engines.prefix_queries_tokens
    return {
        "num_steps": sum(t.num_steps for t in totals),
        "num_gpu_blocks": engines.num_gpu_blocks,
        "kv_usage_p50": finite(p50 / engines.num_gpu_blocks),
        "kv_usage_p95": finite(p95 / engines.num_gpu_blocks),
        "kv_usage_max": _largest(blocks) / engines.num_gpu_blocks,
        "num_running_p50": finite(running_p50),
        "num_running_p95": finite(running_p95),
        "num_running_max": _largest(running),
        "num_preemptions": sum(t.num_preemptions for t in totals),
        "recomputed_tokens": recomputed,
        "recomputed_token_share": recomputed / computed if computed else 0.0,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": engines.prefix_hits_tokens,
        "prefix_cache_hit_rate": engines.prefix_hits_tokens / queries if queries else None,
        "busy_share": busy_s / (len(totals) * window_s) if window_s else None,
        "time_share_by_bound": {
            name: float(by_bound_s[i] / busy_s) if busy_s else 0.0 for i, name in enumerate(BOUNDS)
        },
    }


def _time_by_number(
    totals: Sequence[StepTotals],
    what: Literal["time_by_used_blocks_s", "time_by_num_running_s"],
    window_s: float,
) -> Floats:
    """Seconds with each number of blocks in use, or requests running, on a replica, over all replicas.

    While an engine idles both are 0.
    """
    pooled = np.zeros(1)
    for t in totals:
        pooled = add_histograms(pooled, getattr(t, what))
        pooled[0] += max(window_s - t.busy_s, 0.0)
    return pooled


def _largest(time_by_number_s: Floats) -> int:
    """The largest number that occurred."""
    return int(max(np.flatnonzero(time_by_number_s), default=0))


def group_summary(
    scenario: Scenario,
    table: RequestTable,
    times: RequestTimes,
    log: RequestLog,
    aborted_s: Mapping[int, float],
    duration_s: float,
) -> dict[str, Json]:
    """Tables by client class and by LoRA adapter where there are several, each group judged by its own SLO.

    `duration_s` is the duration of the run's summary.
    """
    classes, adapters = class_groups(scenario, table), adapter_groups(scenario, table)
    found: dict[str, Json] = {}
    if len(classes) > 1:
        found["classes"] = group_table(classes, times, log, aborted_s)
        found["class_jain_index"] = jain_index(classes, times)
    if any(section.slo is not None for section in (scenario.workload.classes or {}).values()):
        found |= _joint_attainment(classes, times, duration_s)
    if adapters:
        found["adapters"] = group_table(adapters, times, log, aborted_s)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The requests of one group, marked in `rows`, and what they were promised."""

    name: str
    rows: Bools
    targets: Sequence[SloTarget]


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
        for metric in ("ttft", "tpot", "e2e"):
            row |= _statistics(metric, sample(of.latencies_s(metric)[of.done]), ("mean", "median", "p99"))
        judged = attainment(of, group.targets)
        row["slo_attainment"] = finite(judged.joint) if group.targets else None
        table[group.name] = row
    return table


def _joint_attainment(groups: Sequence[Group], times: RequestTimes, duration_s: float) -> dict[str, Json]:
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


def _targets(scenario: Scenario) -> Sequence[SloTarget]:
    return () if scenario.slo is None else scenario.slo.targets
