"""Result files of load generators, read as measured runs: a user's own server, to be simulated and compared.

`vllm bench serve --save-result` (better with `--save-detailed`) and GuideLLM's `benchmarks.json` (report
version 2) say what was sent and what came back, but not on what it ran: the GPU, the release and the settings
are columns to be given beside. Other tools' files are not trusted: what is absent or of another kind is None.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sim.errors import input_error
from sim.evidence.validate.requests_file import RequestRows, statistics
from sim.evidence.validate.run_table import MeasuredLengths, MeasuredRun, with_columns
from sim.values import Floats

__all__ = ["read_result_file"]

Object = Mapping[str, object]
"""A JSON object."""


def read_result_file(path: Path) -> list[MeasuredRun]:
    """The runs in a result file, one for each JSON object or GuideLLM benchmark; InputError if neither."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise input_error(error.strerror or str(error), where=str(path)) from None
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text: byte {error.start}", where=str(path)) from None
    runs: list[MeasuredRun] = []
    for line, data in _objects(path, text):
        if isinstance(data.get("benchmarks"), list):
            if not all(isinstance(each, dict) for each in _tables(data, "benchmarks")):
                raise input_error("benchmarks: must be JSON objects", where=f"{path}:{line}")
            runs += [_guidellm_run(path, data, i) for i in range(len(_tables(data, "benchmarks")))]
        elif "total_output_tokens" in data and "completed" in data:
            runs.append(_vllm_bench_run(path, line, data))
        else:
            raise input_error(
                "neither a result of vllm bench serve (--save-result) nor GuideLLM's benchmarks.json",
                where=f"{path}:{line}",
            )
    return runs


def _objects(path: Path, text: str) -> Iterator[tuple[int, Object]]:
    """One JSON object, or JSON lines (`--append-result`), with the line each begins on."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return
        line = text.count("\n", 0, at) + 1
        try:
            data, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise input_error(
                f"not JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}"
            ) from None
        except RecursionError:
            raise input_error("not JSON: nested too deeply", where=f"{path}:{line}") from None
        if not isinstance(data, dict):
            raise input_error("not a JSON object", where=f"{path}:{line}")
        yield line, data


# --- vLLM ---------------------------------------------------------------------------------------------------

_THEIR_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def _vllm_bench_run(path: Path, line: int, data: Object) -> MeasuredRun:
    """The run that one JSON object of `path` tells of, with its requests if it lists them."""
    rows = _vllm_rows(data)
    count = int(_number(data, "completed") or 0)
    if count < 1:
        raise input_error("no request of this run succeeded", where=f"{path}:{line}")
    cap = _number(data, "max_concurrency")
    rate = _number(data, "request_rate")
    listed = rows is not None and rows.arrival_s is not None
    load = "trace" if listed else "poisson_exact" if rate else "burst" if not cap else "closed"
    run = MeasuredRun(
        run_id=path.stem if line == 1 else f"{path.stem}:{line}",
        line=line,
        file=path,
        rows=rows,
        source=path.name,
        model=_text(data, "model_id"),
        load=load,
        rate_per_s=rate,
        max_concurrency=int(cap) if cap else None,
        num_requests=count,
        prompt=MeasuredLengths() if rows is not None else _mean(data, "total_input_tokens", count),
        output=MeasuredLengths() if rows is not None else _mean(data, "total_output_tokens", count),
        client="python",
        measured=_vllm_measures(data, rows),
    )
    # `--metadata gpu=h100-sxm tp=2` is the place where a result file can say what it ran on.
    return with_columns(run, {name: value for name, value in data.items() if isinstance(value, str)})


def _vllm_rows(data: Object) -> RequestRows | None:
    """The requests that succeeded, in the order of sending; None without the arrays."""
    prompt, output = _array(data, "input_lens"), _array(data, "output_lens")
    if prompt is None or output is None or len(prompt) != len(output):
        return None
    good = (output > 0) & (prompt > 0)
    arrival = _array(data, "start_times")
    queued = _array(data, "queue_times")
    if arrival is not None and queued is not None and len(queued) == len(arrival):
        # start_times are taken after the wait for a slot of --max-concurrency.
        arrival = arrival - np.nan_to_num(queued)
    order = np.flatnonzero(good)
    if arrival is not None:
        order = order[np.argsort(arrival[good], kind="stable")]
    ttft, gaps = _array(data, "ttfts"), data.get("itls")
    e2e = None
    if ttft is not None and isinstance(gaps, list) and len(gaps) == len(ttft):
        e2e = ttft + np.array([float(sum(each)) for each in gaps])
    return RequestRows(
        count=len(order),
        arrival_s=None if arrival is None else arrival[order] - arrival[order[0]],
        prompt_tokens=prompt[order].astype(np.int64),
        output_tokens=output[order].astype(np.int64),
        ttft_s=None if ttft is None else ttft[order],
        e2e_s=None if e2e is None else e2e[order],
    )


def _vllm_measures(data: Object, rows: RequestRows | None) -> dict[str, float]:
    found = rows.statistics() if rows is not None else {}
    gaps = data.get("itls")
    if isinstance(gaps, list) and any(gaps):
        found |= statistics("itl", np.concatenate([np.asarray(each, dtype=float) for each in gaps]))
    for metric, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        for stat, name in _THEIR_STATISTICS.items():
            value = _number(data, f"{name}_{theirs}_ms")
            if value:
                found[f"{metric}_{stat}_ms"] = value
    for ours, theirs in (
        ("completed", "completed"),
        ("failed", "failed"),
        ("req_tput_rps", "request_throughput"),
        ("out_tput_tok_s", "output_throughput"),
        ("total_tput_tok_s", "total_token_throughput"),
    ):
        value = _number(data, theirs)
        if value is not None:
            found[ours] = value
    return found


def _mean(data: Object, key: str, count: int) -> MeasuredLengths | None:
    total = _number(data, key)
    return MeasuredLengths.mean(total / count) if total else None


# --- GuideLLM -----------------------------------------------------------------------------------------------


def _guidellm_run(path: Path, data: Object, index: int) -> MeasuredRun:
    """Benchmark number `index` of a report, with its successful requests if it lists them."""
    bench = _tables(data, "benchmarks")[index]
    metrics = _table(bench, "metrics")
    strategy = _find_table(_table(bench, "config"), "strategy") or {}
    kind = _text(strategy, "type_") or ""
    rows = _guidellm_rows(bench)
    count = rows.count if rows else int(_number(_distribution(metrics, "request_latency"), "count") or 0)
    if count < 1:
        raise input_error(f"benchmarks[{index}]: no request succeeded", where=str(path))
    rate = _number(strategy, "rate")
    streams = (
        1.0 if kind == "synchronous" else _number(strategy, "streams") or _number(strategy, "max_concurrency")
    )
    load = "closed" if kind in ("synchronous", "concurrent") else "burst" if kind == "throughput" else "trace"
    if load == "trace" and (rows is None or rows.arrival_s is None):
        load = "poisson" if rate else "burst"
    model = next((value for value in (_find_text(bench, "model"), _find_text(data, "model")) if value), None)
    return MeasuredRun(
        run_id=f"{path.stem}#{index}",
        file=path,
        rows=rows,
        source=path.name,
        model=model,
        load=load,
        rate_per_s=rate,
        max_concurrency=int(streams) if streams else None,
        num_requests=count,
        prompt=MeasuredLengths()
        if rows
        else MeasuredLengths.mean(_required_mean(path, metrics, "prompt_token_count")),
        output=MeasuredLengths()
        if rows
        else MeasuredLengths.mean(_required_mean(path, metrics, "output_token_count")),
        client="python_multi",
        measured=_guidellm_measures(metrics, rows),
    )


def _guidellm_rows(bench: Object) -> RequestRows | None:
    listed = [
        request for request in _tables(_table(bench, "requests"), "successful") if isinstance(request, dict)
    ]
    starts = [_number(_table(_table(request, "info"), "timings"), "request_start") for request in listed]
    columns = {
        name: [_number(request, name) for request in listed]
        for name in ("prompt_tokens", "output_tokens", "time_to_first_token_ms", "request_latency")
    }
    whole = [
        i
        for i in range(len(listed))
        if starts[i] is not None and all(columns[name][i] for name in ("prompt_tokens", "output_tokens"))
    ]
    if not whole:
        return None
    whole.sort(key=lambda i: starts[i] or 0.0)

    def column(name: str) -> Floats:
        return np.array([np.nan if (v := columns[name][i]) is None else v for i in whole], dtype=float)

    arrival = np.array([starts[i] for i in whole], dtype=float)
    return RequestRows(
        count=len(whole),
        arrival_s=arrival - arrival[0],
        prompt_tokens=column("prompt_tokens").astype(np.int64),
        output_tokens=column("output_tokens").astype(np.int64),
        ttft_s=column("time_to_first_token_ms") / 1e3,
        e2e_s=column("request_latency"),
    )


def _guidellm_measures(metrics: Object, rows: RequestRows | None) -> dict[str, float]:
    """GuideLLM's own statistics. Its inter_token_latency is a per-request mean, here called TPOT."""
    found = rows.statistics() if rows is not None else {}
    for ours, theirs, scale in (
        ("ttft", "time_to_first_token_ms", 1.0),
        ("tpot", "inter_token_latency_ms", 1.0),
        ("e2e", "request_latency", 1e3),
    ):
        spread = _distribution(metrics, theirs)
        percentiles = _table(spread, "percentiles")
        values = {"mean": _number(spread, "mean"), "p50": _number(spread, "median")}
        values |= {stat: _number(percentiles, stat) for stat in ("p90", "p95", "p99")}
        found |= {f"{ours}_{stat}_ms": value * scale for stat, value in values.items() if value}
    for ours, theirs in (
        ("req_tput_rps", "requests_per_second"),
        ("out_tput_tok_s", "output_tokens_per_second"),
        ("total_tput_tok_s", "tokens_per_second"),
    ):
        value = _number(_distribution(metrics, theirs), "mean")
        if value:
            found[ours] = value
    return found


def _required_mean(path: Path, metrics: Object, name: str) -> float:
    value = _number(_distribution(metrics, name), "mean")
    if not value:
        raise input_error(f"lists no requests and has no mean of {name}", where=str(path))
    return value


def _distribution(metrics: Object, name: str) -> Object:
    return _table(_table(metrics, name), "successful")


# --- fields of JSON objects ---------------------------------------------------------------------------------


def _number(data: Object, key: str) -> float | None:
    """The number under `key`."""
    value = data.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(data: Object, key: str) -> str | None:
    """The text under `key`, unless empty."""
    value = data.get(key)
    return value if isinstance(value, str) and value else None


def _table(data: Object, key: str) -> Object:
    """The table under `key`, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _tables(data: Object, key: str) -> Sequence[Object]:
    """The list under `key`, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, list) else []


def _array(data: Object, key: str) -> Floats | None:
    """The list of numbers under `key`, null as NaN; None if absent or empty."""
    value = data.get(key)
    if not isinstance(value, list) or not value:
        return None
    return np.array([np.nan if each is None else float(each) for each in value])


def _find_table(data: Object, key: str) -> Object | None:
    """The first table under `key`, however deep."""
    for name, value in data.items():
        if isinstance(value, dict):
            found = value if name == key else _find_table(value, key)
            if found is not None:
                return found
    return None


def _find_text(data: Object, key: str) -> str | None:
    """The first text under `key`, however deep, but not among the requests."""
    if _text(data, key):
        return _text(data, key)
    for name, value in data.items():
        if isinstance(value, dict) and name != "requests" and (found := _find_text(value, key)):
            return found
    return None
