"""What a worker does with a point: simulate it, pack what is kept, and turn what goes wrong into a sentence.

Work and results travel as bytes, the same on every backend: the result is the very file that the store keeps.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.errors import InputError
from sim.jobs.store import Column, Entry, Samples, fingerprint, pack
from sim.results.metrics import latencies_s
from sim.scenario import Scenario

if TYPE_CHECKING:
    from sim.simulation import EngineChange, RunResult
    from sim.workload import Workload

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
"""Columns worked out from those of `requests.csv`, NaN for requests that did not finish."""

COLUMNS = (
    "request_id",
    "class",
    "session",
    "replica",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "last_token_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "num_preemptions",
    "recomputed_tokens",
    "stalled_s",
    "status",
    *LATENCIES,
)
"""What may be asked for by name: the columns of `requests.csv`, one value a request that was sent, by id."""


_LOOK_EVERY_S = 1.0


class WorkerLostError(RuntimeError):
    """A worker died while it had a task."""


class ClusterLostError(RuntimeError):
    """The scheduler of a cluster does not answer any more."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who gave a job to a worker on the same machine: its process id and current folder."""

    pid: int
    folder: str


@dataclass(frozen=True, slots=True)
class Job:
    """A point on its way to a worker; `workload` and `change` as in `sim.simulation.simulate`."""

    key: str
    scenario: Scenario
    columns: tuple[str, ...]
    allow_plugins: bool
    fingerprint: str
    caller: Caller | None = None
    workload: Workload | None = None
    change: EngineChange | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What comes back: the bytes of a store's entry, or why there are none."""

    key: str
    data: bytes | None
    error: str | None = None


def run_job(payload: bytes) -> Done:
    """Simulate the pickled `Job`. Only what kills the process makes this raise."""
    job: Job = pickle.loads(payload)
    if job.caller is not None and job.caller.pid != os.getpid():
        _follow(job.caller)
    try:
        if (here := fingerprint(job.scenario)) != job.fingerprint:
            message = f"the worker runs {here}, not {job.fingerprint}: results could differ"
            return Done(job.key, None, message)
        return Done(job.key, pack(job.key, _simulate(job)))
    except InputError as error:
        return Done(job.key, None, "; ".join(map(str, error.faults)))
    except MemoryError:
        return Done(job.key, None, "the worker ran out of memory")
    except Exception as error:
        return Done(job.key, None, f"{type(error).__name__}: {error}{_place(error)}")


def _follow(caller: Caller) -> None:
    """Work where the caller is, for workers outlive a call and it may have moved; and end when it dies."""
    os.chdir(caller.folder)
    if caller.pid not in _watched:
        _watched.add(caller.pid)
        threading.Thread(target=_end_with, args=(caller.pid,), daemon=True).start()


_watched = set[int]()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def _simulate(job: Job) -> Entry:
    from sim.simulation import simulate

    result = simulate(
        job.scenario,
        keep_steps=False,
        allow_plugins=job.allow_plugins,
        workload=job.workload,
        change=job.change,
    )
    # Through JSON and back, so that a fresh result and one from the store are equal in type as in value.
    summary = json.loads(json.dumps(result.summary, allow_nan=False))
    stuck = None if result.stuck is None else str(result.stuck)
    return Entry(summary, request_samples(result, job.columns), stuck)


def request_samples(result: RunResult, columns: Sequence[str]) -> Samples:
    """The named columns of a run (of `COLUMNS`), one value for each request that was sent."""
    if not columns:
        return {}
    requests = result.request_columns()
    done = requests["status"] == "finished"
    first_s, last_s, arrival_s = (requests[name] for name in ("first_token_s", "last_token_s", "arrival_s"))

    def column(name: str) -> Column:
        if name in ("ttft_s", "tpot_s", "e2e_s"):
            metric = name.removesuffix("_s")
            latency_s = latencies_s(metric, arrival_s, first_s, last_s, requests["output_tokens"])
            return np.where(done, latency_s, np.nan)
        values = requests[name]
        return values.astype(str) if values.dtype.kind not in "biuf" else values

    return {name: column(name) for name in columns}


def _place(error: Exception) -> str:
    """Where an error came from, as it is no user's mistake: ` (file.py:12)`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
