"""Simulations on a Dask cluster that is there. Imported only when Dask is used."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import joblib
from distributed import Client
from distributed.scheduler import KilledWorker
from joblib._dask import DaskDistributedBackend

from sim.errors import input_error
from sim.jobs.worker import ClusterLostError, Done, Job

CONNECT_S = 10


class CarefulDaskBackend(DaskDistributedBackend):  # type: ignore[misc]  # joblib has no types
    """Dask itself runs tasks of dead workers again; where it gives up, the task is reported as failed.

    joblib's own backend tells nobody then and waits for ever.
    """

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> Future[Any]:
        """Send a batch of one task; `callback` gets its result, or the report of its loss."""
        (payload,) = func.items[0][1]
        future: Future[Any] = super().submit(func, callback)

        def tell_loss(ended: Future[Any]) -> None:
            error = ended.exception()
            if error is None or callback is None:
                return
            if isinstance(error, KilledWorker):
                job: Job = pickle.loads(payload)
                callback([Done(job.key, None, f"given up by Dask: {error}")])
            else:
                callback(error)  # nobody cancels a task but a lost scheduler

        future.add_done_callback(tell_loss)
        return future

    def effective_n_jobs(self, n_jobs: int) -> int:
        """At least 2: with a single core joblib would do the work itself, in the caller's process."""
        cores: int = super().effective_n_jobs(n_jobs)
        return max(2, cores)

    def retrieve_result_callback(self, out: Any) -> Any:
        """The result of a batch; raises `ClusterLostError` for one that was cancelled."""
        if isinstance(out, BaseException):
            raise ClusterLostError(str(out))
        return super().retrieve_result_callback(out)


def connect(address: str | None, stack: ExitStack) -> dict[str, Any]:
    """Connect to the scheduler until the stack is closed; returns what `joblib.parallel_config` is told.

    Raises `InputError` if no scheduler answers, or has no workers.
    """
    where = f"--address {address}"
    stack.enter_context(_quiet("distributed.client"))
    try:
        client = stack.enter_context(
            Client(address, timeout=CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
        )
    except (OSError, ValueError, TypeError) as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise input_error(f"no Dask scheduler answers there: {told}", where=where) from None
    if not client.ncores():
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise input_error("the Dask cluster there has no workers", where=where) from None
    joblib.register_parallel_backend("dryserve-dask", CarefulDaskBackend)
    return {"backend": "dryserve-dask", "client": client, "pure": False}


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
