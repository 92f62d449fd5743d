"""Where points are simulated: in this process, on the cores of this machine, or on a cluster that is there.

joblib runs the same tasks on every one of them. What is added here is what happens when a worker dies: its
results so far are safe with the parent, so only points under way are lost, and these are tried again, each
alone, so that one which kills its worker is told from those that ran beside it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import joblib
from joblib.externals.loky.process_executor import BrokenProcessPool

from sim.errors import input_error
from sim.jobs.options import RunOptions
from sim.jobs.worker import ClusterLostError, Done, Job, WorkerLostError, run_job

MAX_DEATHS = 3
"""A point whose worker died so often while it ran alone is given up."""


def simulate_all(jobs: Mapping[str, Job], options: RunOptions) -> Iterator[Done]:
    """Simulate each job and give its result as soon as it is there, in whatever order."""
    payloads = {key: pickle.dumps(job, pickle.HIGHEST_PROTOCOL) for key, job in jobs.items()}
    workers = options.workers or (joblib.cpu_count() if options.backend == "loky" else -1)
    if options.backend == "loky" and workers == 1:
        yield from map(run_job, payloads.values())
        return
    with ExitStack() as stack:
        try:
            yield from _with_deaths(payloads, workers, _cluster(options, stack))
        except ClusterLostError:
            message = "the cluster does not answer any more; what it had finished is kept"
            raise input_error(message, where=f"--address {options.address}") from None


def _with_deaths(payloads: dict[str, bytes], workers: int, config: dict[str, Any]) -> Iterator[Done]:
    """All results; points that were under way when a worker died run again, one by one."""
    waiting, alone, deaths = dict(payloads), dict[str, bytes](), dict.fromkeys(payloads, 0)
    while waiting or alone:
        batch = dict([next(iter(alone.items()))] if alone else waiting)
        started = set[str]()
        try:
            for done in _parallel(batch, workers, config, started):
                waiting.pop(done.key, None)
                alone.pop(done.key, None)
                yield done
        except (BrokenProcessPool, WorkerLostError):  # Dask runs such tasks again by itself
            lost = {key: batch[key] for key in started if key in waiting or key in alone}
            if not lost:
                raise  # no point was under way: starting workers fails, and would again
            for key in lost:
                deaths[key] += len(batch) == 1
                waiting.pop(key, None)
                if deaths[key] >= MAX_DEATHS:
                    alone.pop(key, None)
                    yield Done(key, None, f"its worker was killed {MAX_DEATHS} times (out of memory?)")
            alone |= {key: payload for key, payload in lost.items() if deaths[key] < MAX_DEATHS}


def _parallel(
    batch: Mapping[str, bytes], workers: int, config: dict[str, Any], started: set[str]
) -> Iterator[Done]:
    """One call of joblib; `started` collects the keys of jobs given to workers."""

    def tasks() -> Iterator[Any]:
        for key, payload in batch.items():
            started.add(key)
            yield joblib.delayed(run_job)(payload)

    with joblib.parallel_config(**config), warnings.catch_warnings():
        # Workers that grew are replaced, and an interrupted call tells what it left: both are of no interest.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        warnings.filterwarnings("ignore", message=".*tasks (have been|which were)")
        parallel = joblib.Parallel(
            n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
        )
        results = parallel(tasks())
        try:
            yield from results
        finally:
            results.close()


def _cluster(options: RunOptions, stack: ExitStack) -> dict[str, Any]:
    """What `joblib.parallel_config` is told before each call, while the connection to a cluster is open."""
    try:
        if options.backend == "dask":
            from sim.jobs import dask_cluster

            return dask_cluster.connect(options.address, stack)
        if options.backend == "ray":
            from sim.jobs import ray_cluster

            return ray_cluster.connect(options.address, stack)
    except ImportError:
        extra = {"dask": "cluster", "ray": "ray"}[options.backend]
        message = f"needs {options.backend}: pip install 'dryserve[{extra}]'"
        raise input_error(message, where=f"--backend {options.backend}") from None
    return {"backend": "loky"}
