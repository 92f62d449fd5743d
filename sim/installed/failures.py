"""What a scheduler of the user's raises while it runs, told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SchedulerFailedError(RuntimeError):
    """The installed scheduler, or a class of the user's own in its place, has raised something."""


@contextmanager
def failures() -> Iterator[None]:
    """Tell the failure of a scheduler, and where in its code."""
    try:
        yield
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ""
        if trace is not None:
            place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        said = f": {error}" if str(error) else ""
        raise SchedulerFailedError(f"{type(error).__name__}{said}{place}") from error
