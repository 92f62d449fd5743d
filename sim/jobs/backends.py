"""Where points are simulated: in this process, on the cores of this machine, or on a cluster that is there.

joblib runs the same tasks on every one of them. What is added here is what happens when a worker dies: its
results so far are safe with the parent, so only points under way are lost, and these are tried again, each
alone, so that one which kills its worker is told from those that ran beside it.
"""

from __future__ import annotations

import logging
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import joblib

from sim.errors import input_error
from sim.jobs.options import RunOptions
from sim.jobs.worker import Done, Job, run_job

MAX_DEATHS = 3
"""A point whose worker died so often while it ran alone is given up."""

_CONNECT_S = 10


def simulate_all(jobs: Mapping[str, Job], options: RunOptions) -> Iterator[Done]:
    """Simulate each job and give its result as soon as it is there, in whatever order."""
    payloads = {key: pickle.dumps(job, pickle.HIGHEST_PROTOCOL) for key, job in jobs.items()}
    workers = options.workers or (joblib.cpu_count() if options.backend == "loky" else -1)
    if options.backend == "loky" and workers == 1:
        yield from map(run_job, payloads.values())
        return
    with _cluster(options) as config:
        try:
            yield from _with_deaths(payloads, workers, config)
        except _lost_clusters():
            message = "the cluster does not answer any more; what it had finished is kept"
            raise input_error(message, where=f"--address {options.address}") from None


def _with_deaths(
    payloads: dict[str, bytes], workers: int, config: Callable[[], dict[str, Any]]
) -> Iterator[Done]:
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
        except _worker_deaths():
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
    batch: Mapping[str, bytes], workers: int, config: Callable[[], dict[str, Any]], started: set[str]
) -> Iterator[Done]:
    """One call of joblib; `started` collects the keys of jobs given to workers."""

    def tasks() -> Iterator[Any]:
        for key, payload in batch.items():
            started.add(key)
            yield joblib.delayed(run_job)(payload)

    with joblib.parallel_config(**config()), warnings.catch_warnings():
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


def _worker_deaths() -> tuple[type[BaseException], ...]:
    """What a call of joblib raises when a worker has died. Dask runs such tasks again by itself."""
    from joblib.externals.loky.process_executor import BrokenProcessPool

    return (BrokenProcessPool, *_imported("ray_workers", "ActorLostError"))


def _lost_clusters() -> tuple[type[BaseException], ...]:
    return _imported("dask_workers", "ClusterLostError")


def _imported(module: str, name: str) -> tuple[type[BaseException], ...]:
    """An exception of a module that is imported only where its backend is used."""
    found = sys.modules.get(f"{__package__}.{module}")
    return () if found is None else (getattr(found, name),)


@contextmanager
def _cluster(options: RunOptions) -> Iterator[Callable[[], dict[str, Any]]]:
    """What `joblib.parallel_config` is told before each call, while the connection to a cluster is open."""
    with ExitStack() as stack:
        if options.backend == "dask":
            yield _dask(options, stack)
        elif options.backend == "ray":
            yield _ray(options, stack)
        else:
            yield lambda: {"backend": "loky"}


def _dask(options: RunOptions, stack: ExitStack) -> Callable[[], dict[str, Any]]:
    try:
        from distributed import Client

        from sim.jobs.dask_workers import CarefulDaskBackend
    except ImportError:
        message = "needs dask: pip install 'dryserve[cluster]'"
        raise input_error(message, where="--backend dask") from None
    where = f"--address {options.address}"
    stack.enter_context(_quiet("distributed.client"))
    try:
        client = stack.enter_context(
            Client(options.address, timeout=_CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
        )
    except (OSError, ValueError, TypeError) as error:
        raise input_error(f"no Dask scheduler answers there: {_first_line(error)}", where=where) from None
    if not client.ncores():
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError:
            raise input_error("the Dask cluster there has no workers", where=where) from None
    joblib.register_parallel_backend("dryserve-dask", CarefulDaskBackend)
    return lambda: {"backend": "dryserve-dask", "client": client, "pure": False}


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library from printing its own tracebacks: what matters is told as an error."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _ray(options: RunOptions, stack: ExitStack) -> Callable[[], dict[str, Any]]:
    try:
        import ray

        from sim.jobs.ray_workers import CarefulRayBackend
    except ImportError:
        raise input_error("needs ray: pip install 'dryserve[ray]'", where="--backend ray") from None
    where = f"--address {options.address}" if options.address else "--backend ray"
    if not ray.is_initialized():
        try:
            ray.init(address=options.address or "auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise input_error(f"no Ray cluster answers there: {_first_line(error)}", where=where) from None
        stack.callback(ray.shutdown)
    joblib.register_parallel_backend("dryserve-ray", CarefulRayBackend)
    return lambda: {"backend": "dryserve-ray"}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
