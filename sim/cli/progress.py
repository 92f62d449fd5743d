"""A progress bar on stderr for whoever watches; nothing where nobody does, or where it is over at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sim.cluster.world import Progress
    from sim.jobs.options import Progress as Points

_PATIENCE_S = 1.0
_LINE_EVERY_S = 30.0


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """Give a function for `simulate(progress=…)`; the bar appears after a second, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(stderr=True), transient=True)
    task = bar.add_task(what)
    started = time.monotonic()

    def update(clock_s: float, done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - started > _PATIENCE_S:
            bar.start()
        bar.update(
            task,
            completed=done,
            total=total,
            description=f"{done:,} of {total:,} {what}, t = {clock_s:,.0f} s",
        )

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Say on stderr what is being done, on a terminal only, while there is no telling how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


class PointsBar:
    """Progress of many runs on stderr: a bar with the time left on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.told = "nothing was run"
        self._started = self._last = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def update(self, progress: Points) -> None:
        """Show how far it is; given to `RunOptions(on_progress=…)`."""
        fresh = progress.done - progress.stored
        self.told = f"{fresh:,} runs made, {progress.stored:,} found, {progress.total - progress.done:,} left"
        self.told += f", {progress.failed:,} failed" if progress.failed else ""
        if progress.done == progress.total and self._bar is None:
            return
        if sys.stderr.isatty():
            self._draw(progress)
        elif time.monotonic() - self._last > _LINE_EVERY_S:
            self._last = time.monotonic()
            left_s = (self._last - self._started) / max(1, fresh) * (progress.total - progress.done)
            sys.stderr.write(f"{self.told}; about {_duration(left_s)} to go\n")

    def _draw(self, progress: Points) -> None:
        if self._bar is None:
            if time.monotonic() - self._started < _PATIENCE_S:
                return
            self._bar = _bar_with_time_left()
            self._task = self._bar.add_task("runs", start=True)
            self._bar.start()
        assert self._task is not None
        self._bar.update(
            self._task,
            total=progress.total - progress.stored,
            completed=progress.done - progress.stored,
            description=self.told,
        )

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def points_bar() -> Iterator[PointsBar]:
    """Progress for many runs; `told` says afterwards how many were made."""
    bar = PointsBar()
    try:
        yield bar
    finally:
        bar.stop()


def _bar_with_time_left() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    return Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{minutes} min"
        if minutes < 100
        else f"{minutes / 60:.1f} h"
    )
