"""Order and exactness of events: what makes a run independent of how many of its steps are taken at once.

* What engines do at a moment comes before what the outside world does at the same moment: arrivals, answers
  to clients and wake-ups are *late* events.
* A sleep over many steps ends at the time at which the last of the single sleeps would have ended, to the
  last bit. No delay from now may give that time in floating point, so such a sleep is set by its end.
"""

from __future__ import annotations

from heapq import heappush
from math import inf

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

_LATE = EventPriority(2)


class Alarm(Event):
    """An event that comes at exactly `at_s`, which must not have passed."""

    def __init__(
        self, env: Clock, at_s: float, value: object = None, priority: EventPriority = NORMAL
    ) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = value
        env.put(at_s, priority, self)


class Clock(Environment):
    """A SimPy environment in which events can also be set to a time."""

    def put(self, at_s: float, priority: EventPriority, event: Event) -> None:
        """Let a triggered event come at exactly `at_s`, which must not have passed."""
        heappush(self._queue, (at_s, priority, next(self._eid), event))

    def until_next_event_s(self) -> float:
        """How long until the next event comes; infinity if none does."""
        return self._queue[0][0] - self._now if self._queue else inf


class LateEvent(Event):
    """An event that comes after everything that engines do at the moment at which it succeeds."""

    def succeed(self, value: object = None) -> LateEvent:
        """Let it come now."""
        self._ok = True
        self._value = value
        self.env.schedule(self, _LATE)
        return self


def late_timeout(env: Clock, delay_s: float, value: object = None) -> Alarm:
    """A late event `delay_s` from now."""
    return Alarm(env, env.now + delay_s, value, _LATE)


def late_alarm(env: Clock, at_s: float, value: object) -> Alarm:
    """A late event at exactly `at_s`."""
    return Alarm(env, at_s, value, _LATE)
