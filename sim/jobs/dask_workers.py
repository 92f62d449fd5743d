"""joblib's Dask backend, made to tell when Dask gives a task up. Imported only when Dask is used."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from distributed.scheduler import KilledWorker
from joblib._dask import DaskDistributedBackend

from sim.jobs.worker import Done, Job


class ClusterLostError(RuntimeError):
    """The scheduler does not answer any more."""


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
