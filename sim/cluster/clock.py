"""Order and exactness of events: what makes a run independent of how many of its steps are taken at once; and
the guard against a run that gets nowhere.

* What engines do at a moment comes before what the outside world does at the same moment: arrivals, answers
  to clients and wake-ups are *late* events.
* A sleep over many steps ends at the time at which the last of the single sleeps would have ended, to the
  last bit. No delay from now may give that time in floating point, so such a sleep is set by its end.
"""

from __future__ import annotations

from heapq import heappush
from math import inf
from typing import Literal

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

from scheduler import EngineCore, SchedulerConfig
from scheduler.standstill import examine

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

    def skip_to(self, at_s: float) -> bool:
        """Move on to `at_s` at once if nothing is to happen until then, nor at that moment."""
        if self._queue and self._queue[0][0] <= at_s:
            return False
        self._now = at_s
        return True


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


_PATIENCE = 10


class StuckError(RuntimeError):
    """No request of a replica will ever get another token; the message says who waits for what."""

    def __init__(self, kind: Literal["deadlock", "livelock"], replica: int, reason: str) -> None:
        super().__init__(kind, replica, reason)
        self.kind = kind
        self.replica = replica
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind} in replica {self.replica}: {self.reason}"


class ProgressGuard:
    """Watches the engine of one replica and raises `StuckError` with a diagnosis.

    Deadlock: nothing is in flight, requests are unfinished, and the scheduler twice in a row (in a pipeline
    oftener than it has stages) neither schedules nor preempts anything. Livelock: far more steps without a
    single token than it takes to compute the longest prompt; under vLLM's policies the head of the running
    list, which is served first, would have got one.
    """

    def __init__(self, config: SchedulerConfig, replica: int = 0) -> None:
        chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        chunk = min(chunk, config.max_num_scheduled_tokens or chunk, config.max_num_batched_tokens)
        self._most_steps = 1000 + _PATIENCE * -(-config.max_model_len // chunk)
        self._replica = replica
        self._steps_without_token = 0
        self._preemptions_then = 0
        self._most_idle_attempts = config.pipeline_parallel_size
        self._idle_attempts = 0

    def on_step(self, engine: EngineCore, *, gave_tokens: bool) -> None:
        """A step has ended."""
        self._idle_attempts = 0
        if gave_tokens:
            self._steps_without_token = 0
            return
        if not self._steps_without_token:
            self._preemptions_then = engine.num_preemptions
        self._steps_without_token += 1
        if self._steps_without_token > self._most_steps:
            raise StuckError("livelock", self._replica, self._who_turns_round(engine))

    def on_empty_schedule(self, engine: EngineCore, *, preempted: bool) -> None:
        """The scheduler formed an empty batch with nothing in flight and nothing to come from outside."""
        if not engine.has_unfinished_requests():
            return
        self._idle_attempts = 0 if preempted else self._idle_attempts + 1
        if self._idle_attempts > self._most_idle_attempts:
            raise StuckError("deadlock", self._replica, self._why_nothing_moves(engine))
        if preempted:
            self.on_step(engine, gave_tokens=False)

    def _why_nothing_moves(self, engine: EngineCore) -> str:
        return str(examine(engine))

    def _who_turns_round(self, engine: EngineCore) -> str:
        """Whose preemptions these are, and how little room there is."""
        kv, accounts = engine.kv_cache, engine.preemption_accounts.by_request
        known = {request.request_id: request for request in (*engine.running, *engine.waiting)}
        worst = sorted((i for i in accounts if i in known), key=lambda i: (-accounts[i].chain, i))[:3]
        told = "; ".join(
            f"request {i} ({known[i].num_tokens} tokens) lost its blocks {accounts[i].chain} times in a row"
            for i in worst
        )
        return (
            f"{self._steps_without_token} steps and {engine.num_preemptions - self._preemptions_then} "
            f"preemptions without a token; {engine.num_running} requests run and {engine.num_waiting} wait "
            f"with {kv.num_free_blocks} of {kv.num_blocks - 1} KV blocks free; {told}"
        )
