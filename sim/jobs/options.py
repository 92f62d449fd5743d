"""How and where simulations are made: one value that goes from the command to `run_points`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sim.errors import did_you_mean, input_error

BACKENDS = ("loky", "dask", "ray")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come: points done, of these from the store, and failed."""

    done: int
    total: int
    stored: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How and where simulations are made; nothing here moves a result.

    `backend` is `loky` (this machine; `workers=1` stays in this process), `dask` (the scheduler at `address`)
    or `ray`; `workers` limits how many points are simulated at once, by default as many as there are cores.
    `store` is the folder of results that are kept and found again: by default `$DRYSERVE_CACHE` or the user's
    cache, None for none. `on_progress` is called after every point. `allow_plugins` lets scenarios name
    policy classes of the user's own. Raises `InputError` if there is no such place to run anything.
    """

    workers: int | None = None
    backend: str = "loky"
    address: str | None = None
    store: Path | Literal["default"] | None = "default"
    on_progress: Callable[[Progress], None] | None = None
    allow_plugins: bool = False

    def __post_init__(self) -> None:
        backend, address = f"--backend {self.backend}", f"--address {self.address}"
        if self.backend not in BACKENDS:
            near = did_you_mean(self.backend, BACKENDS)
            raise input_error(f"unknown backend; one of {', '.join(BACKENDS)}{near}", where=backend)
        if self.workers is not None and self.workers < 1:
            raise input_error("must be at least 1", where=f"--workers {self.workers}")
        if self.backend == "loky" and self.address is not None:
            raise input_error("is the address of a cluster; add --backend dask or ray", where=address)
        if self.backend == "dask" and self.address is None:
            raise input_error("needs --address, such as tcp://10.0.0.1:8786", where=backend)

    def over_many_calls(self) -> RunOptions:
        """The same options for several calls of `run_points`, whose progress is told as that of one."""
        return self if self.on_progress is None else replace(self, on_progress=_AddedUp(self.on_progress))


class _AddedUp:
    """Progress of many calls as if they were one: what is left is that of the call under way."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._before = self._now = Progress(0, 0, 0, 0)

    def __call__(self, now: Progress) -> None:
        if now.done == now.stored:  # only a call that begins has simulated nothing yet
            self._before = self._with_earlier(self._now)
        self._now = now
        self._tell(self._with_earlier(now))

    def _with_earlier(self, now: Progress) -> Progress:
        before = self._before
        return Progress(
            before.done + now.done,
            before.done + now.total,
            before.stored + now.stored,
            before.failed + now.failed,
        )
