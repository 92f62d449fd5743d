"""Prefill interval: while something decodes, prefills take part only in every so many steps.

A step is *held* if fewer than `interval` executed steps have passed since prefill work was last done,
something decodes, and the line is not backed up. In a held step unfinished prefills are passed over and
nobody with more than one token to compute is admitted. The line is backed up if, at the end of an unheld
pass over it, more requests wait than are deferred for reasons of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.request import Request


class PrefillInterval:
    """The pace of one engine. An interval of 1 holds nothing."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.is_held = False
        """Whether the step under way is held."""
        self._executed = 0
        self._last_prefill = -interval
        self._backed_up = False
        self._deferred: set[int] = set()
        self._prefilled = False

    def begin_step(self, running: Iterable[Request]) -> None:
        """Decide about the step that is about to be planned."""
        if self.interval == 1:
            return
        since_prefill = self._executed + 1 - self._last_prefill
        self.is_held = (
            since_prefill < self.interval
            and not self._backed_up
            and any(not request.is_prefill_chunk for request in running)
        )
        self._prefilled = False

    def note_prefill(self) -> None:
        """Prefill work is part of the step under way."""
        self._prefilled = True

    def defer(self, request: Request) -> None:
        """The request was passed over, or enqueued in a status in which it would be."""
        self._deferred.add(request.request_id)

    def undefer(self, request: Request) -> None:
        """The request was admitted or left the line."""
        if self._deferred:
            self._deferred.discard(request.request_id)

    def end_pass(self, num_waiting: int) -> None:
        """The pass over the waiting line is over."""
        if not self.is_held:
            self._backed_up = num_waiting > len(self._deferred)

    def end_step(self, scheduled_any: bool) -> None:
        """The step is planned."""
        if scheduled_any:
            self._executed += 1
            if self._prefilled:
                self._last_prefill = self._executed
