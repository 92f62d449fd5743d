"""A progress bar on stderr for whoever watches; nothing where nobody does, or where it is over at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.cluster.world import Progress

_PATIENCE_S = 1.0


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
