"""A run as the result file of `vllm bench serve --save-result --save-detailed`, which its own plots read.

Statistics and lists are of the measured requests that ended, in the order in which they arrived; one that
failed keeps its place with zeros, as there. One that a horizon left in flight is not in it. Times in lists
are seconds, to the nanosecond; texts are empty, because nothing is generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.cluster.recorder import Status, TokenTimes
from sim.values import Bools, Floats

if TYPE_CHECKING:
    from sim.simulation import RunResult

DATE = "19700101-000000"
"""The simulated clock begins at zero."""
_HEAD = [
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
]
_METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time")
_DIGITS = 9


def write(result: RunResult, folder: Path) -> list[Path]:
    """Write `vllm-bench.json`: one object on one line."""
    path = folder / "vllm-bench.json"
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(_head(result), allow_nan=False)[:-1])
        for name, items in _lists(result):
            file.write(f', "{name}": [')
            for number, item in enumerate(items):
                file.write((", " if number else "") + json.dumps(item, allow_nan=False))
            file.write("]")
        file.write("}\n")
    return [path]


def _head(result: RunResult) -> dict[str, object]:
    summary = result.summary
    head: dict[str, object] = {"date": DATE}
    head |= {key: summary[key] for key in _HEAD}
    # `--metadata` is where such a file says what it ran on; `dryserve validate` reads these.
    engine = result.setup.engine
    head |= {"gpu": result.scenario.gpu, "engine_version": engine.version}
    head |= {"tp": str(engine.tensor_parallel_size), "pp": str(engine.pipeline_parallel_size)}
    return head | {
        key: value for metric in _METRICS for key, value in summary.items() if key.endswith(f"_{metric}_ms")
    }


def _lists(result: RunResult) -> Iterator[tuple[str, Iterator[object]]]:
    recorder, tokens = result.recording
    times, log = result.times, recorder.requests
    ended = times.measured & (times.status >= Status.FINISHED)
    chosen = np.flatnonzero(ended)
    chosen = chosen[np.argsort(times.arrival_s[chosen], kind="stable")]
    good = (times.status == Status.FINISHED)[chosen]
    queued_s = np.nan_to_num(np.array(log.first_scheduled_s) - times.arrival_s)[chosen]

    def seconds(values: Floats) -> Iterator[object]:
        return iter(np.where(good, np.nan_to_num(values), 0.0).round(_DIGITS).tolist())

    yield "input_lens", iter(times.prompt_tokens[chosen].tolist())
    yield "output_lens", iter(np.where(good, times.output_tokens[chosen], 0).tolist())
    yield "start_times", iter(times.arrival_s[chosen].round(_DIGITS).tolist())
    yield "ttfts", seconds(times.ttft_s[chosen])
    yield "itls", _gaps(result, tokens, chosen, good)
    yield "latencies", seconds(times.e2e_s[chosen])
    yield "generated_texts", ("" for _ in chosen)
    yield (
        "errors",
        (
            "" if ok else Status(code).name.lower()
            for ok, code in zip(good, times.status[chosen], strict=True)
        ),
    )
    yield "queue_times", iter(np.array(log.client_queue_s)[chosen].round(_DIGITS).tolist())
    yield "server_queue_times", seconds(queued_s)
    yield "server_ttfts", seconds(times.ttft_s[chosen])


def _gaps(result: RunResult, tokens: TokenTimes, chosen: np.ndarray, good: Bools) -> Iterator[list[float]]:
    """The gaps between the bursts of tokens of each request, in the order of `chosen`."""
    ends = [log.end_s() for log in result.recording[0].steps]
    first = np.searchsorted(tokens.request, chosen, side="left")
    last = np.searchsorted(tokens.request, chosen, side="right")
    for begin, stop, ok in zip(first.tolist(), last.tolist(), good.tolist(), strict=True):
        if not ok or begin == stop:
            yield []
            continue
        runs = zip(*(column[begin:stop] for column in tokens[1:4]), strict=True)
        moments = np.concatenate([ends[replica][step : step + count] for replica, step, count in runs])
        yield np.diff(moments).round(_DIGITS).tolist()
