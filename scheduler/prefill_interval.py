"""Prefill interval: while something decodes, prefills take part only in every so many steps.

A step is *held* if fewer than `interval` executed steps have passed since prefill work was last done,
something decodes, and the line is not backed up. In a held step unfinished prefills are passed over and
nobody with more than one token to compute is admitted. The line is backed up if, at the end of an unheld
pass over it, more requests wait than are deferred for reasons of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.output import SchedulerOutput
from scheduler.request import Request
from scheduler.waiting import WaitingLine


class PrefillInterval:
    """The pace of one engine. An interval of 1 holds nothing."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._executed = 0
        self._last_prefill = -interval
        self._backed_up = False

    def holds_next(self, running: Iterable[Request]) -> bool:
        """Whether the step that is about to be planned is held."""
        return (
            self.interval > 1
            and self._executed + 1 - self._last_prefill < self.interval
            and not self._backed_up
            and any(not request.is_prefill_chunk for request in running)
        )

    def note_step(self, output: SchedulerOutput, waiting: WaitingLine, *, admitted: bool) -> None:
        """A step is planned; `admitted`: there was a pass over the waiting line."""
        if self.interval == 1:
            return
        if admitted and not output.holds_prefills:
            self._backed_up = waiting.size > len(waiting.deferred)
        if output.total_num_scheduled_tokens > 0:
            self._executed += 1
            if output.has_prefill_chunk or _admits_a_prefill(output):
                self._last_prefill = self._executed


def _admits_a_prefill(output: SchedulerOutput) -> bool:
    """Whether somebody was admitted with more than one token to compute."""
    befores = output.num_computed_before
    return any(
        befores[place] < output.requests[place].num_tokens - 1
        for place in range(output.num_running_scheduled, len(befores))
    )
