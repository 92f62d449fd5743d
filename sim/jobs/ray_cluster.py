"""Simulations on a Ray cluster that is there. Imported only when Ray is used."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import joblib
import ray
from ray.util.joblib.ray_backend import RayBackend

from sim.errors import input_error
from sim.jobs.worker import WorkerLostError


class CarefulRayBackend(RayBackend):  # type: ignore[misc]  # ray's has no types
    """Ray's backend, made to give results one by one and to tell when an actor dies.

    As joblib's pools of processes report it, a lost task has an exception in place of a result.
    """

    supports_return_generator = True

    def retrieve_result_callback(self, result: object) -> Any:
        """The result of a batch; raises `WorkerLostError` if its actor died."""
        if isinstance(result, BaseException):
            raise WorkerLostError(str(result))
        return super().retrieve_result_callback(result)


def connect(address: str | None, stack: ExitStack) -> dict[str, Any]:
    """Connect to the cluster until the stack is closed; returns what `joblib.parallel_config` is told.

    Raises `InputError` if no cluster answers.
    """
    where = f"--address {address}" if address else "--backend ray"
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise input_error(f"no Ray cluster answers there: {told}", where=where) from None
        stack.callback(ray.shutdown)
    joblib.register_parallel_backend("dryserve-ray", CarefulRayBackend)
    return {"backend": "dryserve-ray"}
