"""joblib's Ray backend, made to give results one by one and to tell when an actor dies."""

from __future__ import annotations

from typing import Any

from ray.util.joblib.ray_backend import RayBackend


class ActorLostError(RuntimeError):
    """An actor died while it had a task."""


class CarefulRayBackend(RayBackend):  # type: ignore[misc]  # ray's has no types
    """As joblib's pools of processes report it, a lost task has an exception in place of a result."""

    supports_return_generator = True

    def retrieve_result_callback(self, result: object) -> Any:
        """The result of a batch; raises `ActorLostError` if its actor died."""
        if isinstance(result, BaseException):
            raise ActorLostError(str(result))
        return super().retrieve_result_callback(result)
