"""Order and exactness of events on the SimPy clock.

Two rules make a run independent of how it is carried out, step by step or many steps at once:

* what engines do at a moment comes before what the outside world does at the same moment: arrivals, answers
  to clients and wake-ups are *late* events;
* a sleep of many steps ends at exactly the time at which the last of the single sleeps would have ended.
"""

from __future__ import annotations

from math import inf, nextafter

from simpy import Environment, Event
from simpy.events import EventPriority

_LATE = EventPriority(2)


class LateEvent(Event):
    """An event that comes after everything that engines do at that moment."""

    def succeed(self, value: object = None, delay_s: float = 0.0) -> LateEvent:
        """Let it come `delay_s` from now."""
        self._ok = True
        self._value = value
        self.env.schedule(self, _LATE, delay_s)
        return self


def late_timeout(env: Environment, delay_s: float, value: object = None) -> LateEvent:
    """A late event `delay_s` from now."""
    return LateEvent(env).succeed(value, delay_s)


def delay_until(now_s: float, at_s: float) -> float:
    """The delay with which an event set at `now_s` comes at exactly `at_s`, in floating point."""
    delay_s = at_s - now_s
    while now_s + delay_s < at_s:
        delay_s = nextafter(delay_s, inf)
    while now_s + delay_s > at_s:
        delay_s = nextafter(delay_s, 0.0)
    return delay_s
