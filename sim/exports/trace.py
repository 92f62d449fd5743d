"""A run as a Chrome trace (Trace Event Format, JSON), to look at in ui.perfetto.dev or chrome://tracing.

A process for each replica: a slice for each step (`X`, on one thread, or on several where steps overlap in a
pipeline), counters of running and waiting requests and of KV blocks (`C`, where they change), an instant for
each preemption (`i`), and an async span for each request with its phases inside (`b` and `e`, by request id).
Events are written one by one, so memory does not grow with their number. Timestamps are microseconds with
three decimals, from integers of nanoseconds; on every track they ascend in the order of the file.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.errors import Fault, InputError, input_error, writing
from sim.results.run_tables import preemption_cuts, request_ends, request_spans
from sim.values import Ints

if TYPE_CHECKING:
    import pandas as pd

    from sim.results.plots import Run


MAX_EVENTS = 500_000
"""A trace of so many events, some 100 MB uncompressed, still opens in a browser within seconds."""
LOADS, POOLS = ("num_running", "num_waiting"), ("kv_used_blocks", "kv_cached_blocks")
NS = 1e9
TOLERANCE_NS = 100
"""Steps that seem to overlap by less are one after the other: their times are rounded."""
STEP_COLUMNS = ("decode_tokens", "prefill_tokens", "recompute_tokens", *LOADS, *POOLS, "bound")
STEPS_TID, PREEMPTIONS_TID, CLUSTER_PID = 1, 0, 0


@dataclass(frozen=True, slots=True)
class Traced:
    """What was written: the window in s, counts, and whether `max_events` ended it early."""

    from_s: float
    to_s: float
    num_events: int
    num_steps: int
    num_requests: int
    cut: bool


def write_trace(
    run: Run,
    path: Path | str,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    max_events: int = MAX_EVENTS,
) -> Traced:
    """Write what happened in [from_s, to_s] to `path`, gzipped if it ends in `.gz`; at most `max_events`.

    Where there would be more events, the window ends earlier, and the metadata (`otherData`) says so. Spans
    that reach out of the window are cut at its ends; their `args` keep the whole times. Raises `InputError`
    if the window is empty or the file cannot be written.
    """
    path = Path(path)
    window_s, wanted_to_s = _window(run, from_s, to_s, max_events)
    cut = window_s[1] < wanted_to_s
    steps = run.steps[_overlaps(run.steps["end_s"] - run.steps["step_time_s"], run.steps["end_s"], window_s)]
    requests = _requests_in(run, window_s)
    if not len(steps) and not len(requests):
        raise input_error(f"nothing happened in {window_s[0]:g}–{window_s[1]:g} s", where="--from-s, --to-s")
    about = _about(run, window_s, wanted_to_s, max_events, cut)
    count = 0
    with writing(path), _replaced(path) as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
        for event in _events(run, steps, requests, window_s):
            file.write(f",\n{event}" if count else event)
            count += 1
        file.write("\n]}\n")
    return Traced(*window_s, count, len(steps), len(requests), cut)


def _window(
    run: Run, from_s: float | None, to_s: float | None, max_events: int
) -> tuple[tuple[float, float], float]:
    """The window that is written, and the end that was asked for."""
    last_s = _last_s(run)
    start, end = from_s or 0.0, last_s if to_s is None else min(to_s, last_s)
    faults = []
    if not start >= 0.0 or (to_s is not None and not to_s > start):
        faults += input_error(
            f"need 0 <= from < to, got {start:g} and {to_s}", where="--from-s, --to-s"
        ).faults
    elif start >= last_s:
        faults.append(Fault("--from-s", None, f"begins after the run has ended at {last_s:g} s"))
    if max_events < 1:
        faults.append(Fault("--max-events", None, f"must be at least 1, got {max_events}"))
    if faults:
        raise InputError(faults)
    ends, step_events = run.steps["end_s"].to_numpy(dtype=np.float64), _events_by_step(run.steps)
    requests = _requests_in(run, (start, end))
    begins = np.maximum(requests["arrival_s"].to_numpy(dtype=np.float64), start)
    shown = (ends > start) & (ends <= end)
    moments = np.concatenate([ends[shown], begins])
    request_events = 8 + 7 * requests["num_preemptions"].to_numpy(dtype=np.int64)
    weights = np.concatenate([step_events[shown], request_events])
    order = np.argsort(moments, kind="stable")
    total = np.cumsum(weights[order]) + 4 * (2 + len(np.unique(run.steps["replica"].to_numpy())))
    fits = int(np.searchsorted(total, max_events, side="right"))
    if fits == len(moments):
        return (start, end), end
    if fits == 0 or moments[order][fits - 1] <= start:
        raise input_error(f"{max_events} hold not even the first step", where="--max-events")
    return (start, float(moments[order][fits - 1])), end


def _events_by_step(steps: pd.DataFrame) -> Ints:
    """One slice a step, and a counter each where load or pool are not what they were a step ago."""
    events = np.ones(len(steps), dtype=np.int64)
    for columns in (LOADS, POOLS):
        values = steps[["replica", *columns]].to_numpy(dtype=np.int64)
        for replica in np.unique(values[:, 0]):
            own = np.flatnonzero(values[:, 0] == replica)
            same = (values[own[1:]] == values[own[:-1]]).all(axis=1)
            events[own] += np.append(1, ~same)
    return events


def _last_s(run: Run) -> float:
    clock_s = run.summary.get("clock_s")
    if isinstance(clock_s, (int, float)):
        return float(clock_s)
    return float(run.steps["end_s"].max()) if len(run.steps) else 0.0


def _requests_in(run: Run, window_s: tuple[float, float]) -> pd.DataFrame:
    gone = request_ends(run.requests, _last_s(run))
    return run.requests[_overlaps(run.requests["arrival_s"], gone, window_s)]


def _overlaps(
    start_s: pd.Series[float], end_s: pd.Series[float], window_s: tuple[float, float]
) -> pd.Series[bool]:
    return (end_s >= window_s[0]) & (start_s <= window_s[1])


def _about(
    run: Run, window_s: tuple[float, float], wanted_to_s: float, max_events: int, cut: bool
) -> dict[str, object]:
    keys = ("mirrors", "dryserve_version", "calibration_id", "seed", "loop")
    about = {"scenario": run.scenario.name, **{key: run.summary.get(key) for key in keys}}
    about |= {"from_s": window_s[0], "to_s": window_s[1], "run_ends_s": _last_s(run)}
    if cut:
        why = f"so as to hold at most {max_events:,} events"
        about["cut"] = f"ends at {window_s[1]:g} s instead of {wanted_to_s:g} s, {why}"
    return about


@contextmanager
def _replaced(path: Path) -> Iterator[IO[str]]:
    """A text file that takes its place when it is complete; the same bytes for the same text."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("wb") as raw:
            if path.suffix == ".gz":
                packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=5, mtime=0)
                with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file:
                    yield file
            else:
                with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
                    yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _events(
    run: Run, steps: pd.DataFrame, requests: pd.DataFrame, window_s: tuple[float, float]
) -> Iterator[str]:
    """Every event as JSON text."""
    yield _named("process_name", CLUSTER_PID, 0, "cluster")
    for replica in np.unique(np.append(steps["replica"].to_numpy(), requests["replica"].to_numpy())):
        if replica < 0:
            continue
        pid = int(replica) + 1
        yield _named("process_name", pid, 0, f"replica {replica}")
        yield from _steps(pid, steps[steps["replica"].eq(int(replica))])
        yield from _preemptions(pid, run.preemption_times, int(replica), window_s)
    yield from _requests(run, requests, window_s)


def _named(kind: str, pid: int, tid: int, name: str) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"ts":0,"args":{{"name":{json.dumps(name)}}}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _ns(seconds: npt.ArrayLike) -> Ints:
    return np.rint(np.asarray(seconds, dtype=np.float64) * NS).astype(np.int64)


def _steps(pid: int, steps: pd.DataFrame) -> Iterator[str]:
    """The slices of one replica's steps and its counters."""
    end_ns = _ns(steps["end_s"])
    start_ns = np.maximum(end_ns - _ns(steps["step_time_s"]), 0)
    order = np.argsort(start_ns, kind="stable")
    lanes = _lanes(start_ns[order], end_ns[order])
    for lane in range(int(lanes.max(initial=0)) + 1):
        name = "steps" if lane == 0 else f"steps, {lane + 1} in flight"
        yield _named("thread_name", pid, STEPS_TID + lane, name)
    rows = zip(*(steps[name].to_numpy()[order].tolist() for name in STEP_COLUMNS), strict=True)
    lane_end = [0] * (int(lanes.max(initial=0)) + 1)
    requests_before = blocks_before = None
    for i, row in enumerate(rows):
        decode, prefill, recompute, running, waiting, used, cached, bound = row
        place, lane = order[i], int(lanes[i])
        start, end = max(int(start_ns[place]), lane_end[lane]), int(end_ns[place])
        lane_end[lane] = max(end, start)
        tokens = (("decode", decode), ("prefill", prefill), ("recompute", recompute))
        name = " + ".join(part for part, count in tokens if count) or "step"
        yield (
            f'{{"ph":"X","name":"{name}","cat":"step","pid":{pid},"tid":{STEPS_TID + lane},'
            f'"ts":{_us(start)},"dur":{_us(max(end - start, 0))},"args":{{"decode_tokens":{decode},'
            f'"prefill_tokens":{prefill},"recompute_tokens":{recompute},"num_running":{running},'
            f'"num_waiting":{waiting},"kv_used_blocks":{used},"bound":"{bound}"}}}}'
        )
        if (running, waiting) != requests_before:
            requests_before = (running, waiting)
            yield _counter("requests", pid, start, f'"running":{running},"waiting":{waiting}')
        if (used, cached) != blocks_before:
            blocks_before = (used, cached)
            yield _counter("KV blocks", pid, start, f'"used":{used},"cached, free":{cached}')


def _counter(name: str, pid: int, ns: int, args: str) -> str:
    return f'{{"ph":"C","name":"{name}","pid":{pid},"tid":0,"ts":{_us(ns)},"args":{{{args}}}}}'


def _lanes(start_ns: Ints, end_ns: Ints) -> Ints:
    """For each step, in order of its start, the first thread on which nothing overlaps it."""
    lanes = np.zeros(len(start_ns), dtype=np.int64)
    if np.all(start_ns[1:] >= end_ns[:-1] - TOLERANCE_NS):
        return lanes
    free: list[int] = []
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        lane = next((n for n, until in enumerate(free) if start >= until - TOLERANCE_NS), len(free))
        free[lane : lane + 1] = [end]
        lanes[i] = lane
    return lanes


def _preemptions(
    pid: int, times: pd.DataFrame | None, replica: int, window_s: tuple[float, float]
) -> Iterator[str]:
    """An instant for each preemption, on a thread of their own."""
    if times is None:
        return
    chosen = times[times["replica"].eq(replica) & times["preempted_s"].between(*window_s)]
    if len(chosen):
        yield _named("thread_name", pid, PREEMPTIONS_TID, "preemptions")
    for request_id, ns in zip(
        chosen["request_id"].tolist(), _ns(chosen["preempted_s"]).tolist(), strict=True
    ):
        yield (
            f'{{"ph":"i","s":"t","name":"preemption","cat":"preemption","pid":{pid},"tid":{PREEMPTIONS_TID},'
            f'"ts":{_us(ns)},"args":{{"request_id":{request_id}}}}}'
        )


def _requests(run: Run, requests: pd.DataFrame, window_s: tuple[float, float]) -> Iterator[str]:
    """The span of each request with its phases inside it; rejected requests are instants."""
    cuts = preemption_cuts(run.preemption_times)
    from_ns, to_ns = (int(ns) for ns in _ns(window_s))
    told = ("class", "prompt_tokens", "output_tokens", "cached_tokens", "num_preemptions", "status")
    names = ("request_id", "replica", "arrival_s", "first_scheduled_s", "first_token_s", "end_s", *told)
    table = requests.assign(end_s=request_ends(requests, _last_s(run)))
    table = table.sort_values(["arrival_s", "request_id"])
    for row in zip(*(table[name].tolist() for name in names), strict=True):
        request_id, replica, arrival_s, scheduled_s, first_s, until_s, *facts = row
        args = json.dumps({"request_id": request_id, **dict(zip(told, facts, strict=True))})
        pid, status = replica + 1, facts[-1]
        if status == "rejected":
            at = _us(int(_ns(arrival_s)))
            yield (
                f'{{"ph":"i","s":"p","name":"rejected","cat":"rejected","pid":{CLUSTER_PID},"tid":0,'
                f'"ts":{at},"args":{args}}}'
            )
            continue
        own = cuts.get(request_id, [])
        spans = [
            ("request", arrival_s, until_s),
            *request_spans(arrival_s, scheduled_s, first_s, until_s, own),
        ]
        yield from _nested(pid, request_id, spans, args, from_ns, to_ns)


def _nested(
    pid: int, request_id: int, spans: Sequence[tuple[str, float, float]], args: str, from_ns: int, to_ns: int
) -> Iterator[str]:
    """The first span around the rest, all cut to the window; phases that lie outside of it are left out."""

    def event(phase: str, name: str, ns: int, more: str = "") -> str:
        return (
            f'{{"ph":"{phase}","name":"{name}","cat":"request","id":"{request_id}","pid":{pid},"tid":0,'
            f'"ts":{_us(ns)}{more}}}'
        )

    clipped = [
        (name, max(int(start), from_ns), min(int(end), to_ns))
        for name, (start, end) in zip(
            (span[0] for span in spans), _ns([span[1:] for span in spans]), strict=True
        )
    ]
    _, begin, end = clipped[0]
    yield event("b", "request", begin, f',"args":{args}')
    at = begin
    for name, start, stop in clipped[1:]:
        start = max(start, at)
        if start < stop:
            at = min(stop, end)
            yield event("b", name, start)
            yield event("e", name, at)
    yield event("e", "request", max(end, begin))
