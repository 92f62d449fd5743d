"""Many simulations at once: points in, outcomes out, in the same order and the same bytes wherever they run.

    outcomes = run_points([Point(scenario, {"rate": 8}), …], columns=("ttft_s",), workers=2)

Each result is kept as it arrives, so an interrupted call goes on where it stopped, and asking again costs
nothing.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sim.errors import InputError, did_you_mean, os_reason
from sim.jobs.backends import simulate_all
from sim.jobs.options import Progress, RunOptions
from sim.jobs.store import Entry, Samples, Store, default_folder, fingerprint, point_key, unpack
from sim.jobs.worker import COLUMNS, Caller, Job
from sim.scenario import Scenario
from sim.values import Json

if TYPE_CHECKING:
    from sim.simulation import EngineChange
    from sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Point:
    """One run to make: its scenario, and what the caller calls it.

    `workload` and `change` are as in `sim.simulation.simulate`: requests that are given, and another engine
    than the scenario's own. A worker must be able to unpickle them.
    """

    scenario: Scenario
    label: Mapping[str, object] = field(default_factory=dict)
    workload: Workload | None = None
    change: EngineChange | None = None

    @property
    def is_kept(self) -> bool:
        """Whether its result may be found again later: the code behind a change has no fingerprint."""
        return self.change is None

    def key(self, columns: Sequence[str]) -> str:
        """Equal for points that make the same run."""
        if self.workload is None and self.change is None:
            return point_key(self.scenario, columns)
        return point_key(self.scenario, columns, pickle.dumps((self.workload, self.change)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point.

    `summary` is that of `RunResult`, `samples` the columns asked for: one value for each request that was
    sent, by request id, times in s. `error` says why there are none; a run that got stuck has both, and its
    numbers describe what happened until then.
    """

    point: Point
    key: str
    summary: dict[str, Json] | None
    error: str | None = None
    samples: Samples | None = None


def run_points(
    points: Sequence[Point], *, columns: Sequence[str] = (), options: RunOptions | None = None
) -> list[Outcome]:
    """Simulate every point and return the outcomes in the order of the points.

    `columns` names per-request columns to keep (see `sim.jobs.worker.COLUMNS`).

    A point that fails has an `error`; the others are simulated all the same. Raises `InputError` for a
    backend that is not there and a store that cannot be written, before anything runs, and ValueError for
    an unknown column. After KeyboardInterrupt everything that was finished is in the store.
    """
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        near = did_you_mean(unknown[0], COLUMNS)
        raise ValueError(f"no column {unknown[0]!r} of requests{near}; there are {', '.join(COLUMNS)}")
    options = options or RunOptions()
    kept = _Kept(options.store)
    columns = tuple(sorted(set(columns)))
    keys = [point.key(columns) for point in points]
    caller = Caller(os.getpid(), str(Path.cwd())) if options.backend == "loky" else None
    found: dict[str, Entry | str] = {}
    jobs: dict[str, Job] = {}
    for key, point in zip(keys, points, strict=True):
        if key not in found and key not in jobs:
            entry = kept.get(key) if point.is_kept else None
            if entry is not None:
                found[key] = entry
            else:
                given = (point.workload, point.change)
                jobs[key] = Job(
                    key,
                    point.scenario,
                    columns,
                    options.allow_plugins,
                    fingerprint(point.scenario),
                    caller,
                    *given,
                )
    stored = len(found)

    def tell() -> None:
        if options.on_progress is not None:
            failed = sum(not isinstance(entry, Entry) or entry.stuck is not None for entry in found.values())
            options.on_progress(Progress(len(found), len(found) + len(jobs), stored, failed))

    tell()
    if jobs:
        for done in simulate_all(dict(jobs), options):
            job = jobs.pop(done.key)
            if done.data is not None:
                if job.change is None:
                    kept.put(done.key, done.data)
                entry = unpack(done.key, done.data)
                assert entry is not None
                found[done.key] = entry
            else:
                found[done.key] = str(done.error)
            tell()
    return [_outcome(point, key, found[key]) for point, key in zip(points, keys, strict=True)]


def _outcome(point: Point, key: str, entry: Entry | str) -> Outcome:
    if isinstance(entry, str):
        return Outcome(point, key, None, entry)
    stuck = None if entry.stuck is None else f"the run was ended by a {entry.stuck}"
    return Outcome(point, key, entry.summary, stuck, entry.samples)


class _Kept:
    """The store, if there is one. The default one is a convenience: where it fails, results are not kept."""

    def __init__(self, store: Path | Literal["default"] | None) -> None:
        self._store: Store | None = None
        if store == "default":
            try:
                self._store = Store(default_folder())
            except InputError as error:
                self._give_up(str(error))
        elif store is not None:
            self._store = Store(store)

    def get(self, key: str) -> Entry | None:
        return None if self._store is None else self._store.get(key)

    def put(self, key: str, data: bytes) -> None:
        if self._store is None:
            return
        try:
            self._store.put(key, data)
        except OSError as error:
            self._give_up(f"{self._store.folder}: {os_reason(error)}")

    def _give_up(self, reason: str) -> None:
        self._store = None
        warnings.warn(f"results are not kept for a later call: {reason}", RuntimeWarning, stacklevel=4)
