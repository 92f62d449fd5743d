"""What a server's /metrics would say at the end of the run, under vLLM's names, as OpenMetrics text.

An engine a replica. Everything since the start counts, warm-up included, as on a server. Histograms of
latencies hold finished requests, except time to first token and inter-token latency, which are observed when
they happen. Whether a request stopped by itself or at its limit is not kept: all are counted as `stop`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.cluster.recorder import STEP_FIELDS, Status, TokenTimes
from sim.results.metrics import Sample, inter_token_gaps, sample
from sim.values import Ints

if TYPE_CHECKING:
    from sim.simulation import RunResult

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
        160, 640, 2560)  # fmt: skip
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION = (1, 8, *(2**power for power in range(4, 15)))
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

Metric = tuple[str, str, str]
"""Name, type, help."""
Labels = dict[str, str]


def write(result: RunResult, folder: Path) -> list[Path]:
    """Write `metrics.txt`, which ends in `# EOF`."""
    path = folder / "metrics.txt"
    path.write_text(render(result), encoding="utf-8")
    return [path]


def render(result: RunResult) -> str:
    """The whole exposition."""
    lines: dict[str, list[str]] = {}
    for replica in range(len(result.engines)):
        labels = {"model_name": result.setup.deployment.model.name, "engine": str(replica)}
        for (name, kind, told), samples in _engine(result, replica, labels):
            lines.setdefault(name, [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]).extend(samples)
    return "\n".join([line for family in lines.values() for line in family] + ["# EOF", ""])


def _engine(result: RunResult, replica: int, labels: Labels) -> Iterator[tuple[Metric, list[str]]]:
    yield from _state(result, replica, labels)
    yield from _totals(result, replica, labels)
    yield from _histograms(result, replica, labels)


def _state(result: RunResult, replica: int, labels: Labels) -> Iterator[tuple[Metric, list[str]]]:
    engine, blocks = result.engines[replica], result.setup.num_gpu_blocks
    gauges = (
        ("num_requests_running", "Requests running at the end.", engine.num_running),
        ("num_requests_waiting", "Requests waiting at the end.", engine.num_waiting),
        ("kv_cache_usage_perc", "Share of KV blocks in use at the end, 0 to 1.",
         engine.kv_cache.num_used_blocks / blocks),
    )  # fmt: skip
    for name, told, value in gauges:
        yield (f"vllm:{name}", "gauge", told), [_line(f"vllm:{name}", labels, value)]
    facts = labels | {"block_size": str(result.setup.engine.block_size), "num_gpu_blocks": str(blocks)}
    name = "vllm:cache_config_info"
    yield (name, "gauge", "The KV cache."), [_line(name, facts, 1)]


def _totals(result: RunResult, replica: int, labels: Labels) -> Iterator[tuple[Metric, list[str]]]:
    times, log, engine = result.times, result.recording[0].requests, result.engines[replica]
    here = np.array(log.replica) == replica
    begun = here & np.isfinite(times.first_token_s)
    stats = engine.prefix_cache_stats
    prompts, outputs = times.prompt_tokens[begun].sum(), times.output_tokens[here].sum()
    cached = np.array(log.cached_tokens)[begun].sum()
    totals = (
        ("prompt_tokens", "Prompt tokens of requests that have got a token.", prompts),
        ("prompt_tokens_cached", "Of these, found in the prefix cache.", cached),
        ("generation_tokens", "Tokens generated.", outputs),
        ("num_preemptions", "Preemptions.", engine.num_preemptions),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.queries),
        ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.hits),
    )
    for name, told, value in totals:
        yield (f"vllm:{name}", "counter", told), [_line(f"vllm:{name}_total", labels, int(value))]
    name = "vllm:request_success"
    ends = {"stop": Status.FINISHED, "abort": Status.ABORTED}
    counts = {reason: int((here & (times.status == status)).sum()) for reason, status in ends.items()}
    yield (
        (name, "counter", "Requests that have ended, by reason."),
        [
            _line(f"{name}_total", labels | {"finished_reason": reason}, count)
            for reason, count in counts.items()
        ],
    )


def _histograms(result: RunResult, replica: int, labels: Labels) -> Iterator[tuple[Metric, list[str]]]:
    recorder, tokens = result.recording
    times, log = result.times, recorder.requests
    here = np.array(log.replica) == replica
    done = here & (times.status == Status.FINISHED)
    scheduled_s = np.array(log.first_scheduled_s)
    own = TokenTimes(*(column[tokens.replica == replica] for column in tokens))
    most = result.setup.replica.scheduler.max_model_len
    lengths = _one_two_five(most)
    counts = recorder.steps[replica].kept()[2]
    place = STEP_FIELDS.index("decode_tokens") - 2
    step_tokens = counts[:, place : place + 3].sum(axis=1).astype(np.float64)
    prompt, output = _counted(times.prompt_tokens[done]), _counted(times.output_tokens[done])
    preemptions = _counted(np.array(log.num_preemptions)[done])
    gaps = inter_token_gaps(recorder, own, np.ones(len(times.status), dtype=np.bool_))
    first_s, last_s = times.first_token_s, times.last_token_s
    moments = {
        "queue": ("Arrival to first scheduled.", scheduled_s - times.arrival_s),
        "prefill": ("First scheduled to first token.", first_s - scheduled_s),
        "decode": ("First token to last token.", last_s - first_s),
        "inference": ("First scheduled to last token.", last_s - scheduled_s),
    }
    tables: list[tuple[str, str, Sequence[float], Sample]] = [
        ("time_to_first_token_seconds", "Arrival to first token.", TTFT, sample(times.ttft_s[here])),
        ("inter_token_latency_seconds", "Gap between tokens.", ITL, gaps),
        ("request_time_per_output_token_seconds", "Time per output token after the first; 0 with one.", ITL,
         sample(np.nan_to_num(times.tpot_s[done]))),
        ("e2e_request_latency_seconds", "Arrival to last token.", LATENCY, sample(times.e2e_s[done])),
        *((f"request_{name}_time_seconds", told, LATENCY, sample(span_s[done]))
          for name, (told, span_s) in moments.items()),
        ("request_prompt_tokens", "Prompt tokens of a request.", lengths, prompt),
        ("request_generation_tokens", "Output tokens of a request.", lengths, output),
        ("request_num_preemptions", "Preemptions of a request.", PREEMPTIONS, preemptions),
        ("iteration_tokens_total", "Tokens computed in a step.", ITERATION, sample(step_tokens)),
    ]  # fmt: skip
    for name, told, bounds, of in tables:
        yield (f"vllm:{name}", "histogram", told), list(_histogram(f"vllm:{name}", labels, bounds, of))


def _counted(values: Ints) -> Sample:
    return sample(values.astype(np.float64))


def _histogram(name: str, labels: Labels, bounds: Sequence[float], of: Sample) -> Iterator[str]:
    """Cumulative buckets, then the sum and the count that belong to them."""
    below = np.concatenate(([0], np.cumsum(of.counts)))
    for bound in bounds:
        count = int(below[np.searchsorted(of.values, bound, side="right")])
        yield _line(f"{name}_bucket", labels | {"le": repr(float(bound))}, count)
    yield _line(f"{name}_bucket", labels | {"le": "+Inf"}, of.size)
    yield _line(f"{name}_sum", labels, float(np.dot(of.values, of.counts)))
    yield _line(f"{name}_count", labels, of.size)


def _one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to `most`."""
    series = [factor * 10**power for power in range(12) for factor in (1, 2, 5)]
    return [value for value in series if value <= most]


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
