"""The guard against a simulation that runs without getting anywhere."""

from __future__ import annotations

from typing import Literal

from scheduler import EngineCore, SchedulerConfig
from scheduler.standstill import examine

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

    Deadlock: nothing is in flight, requests are unfinished, and the scheduler twice in a row neither
    schedules nor preempts anything. Livelock: far more steps without a single token than it takes to compute
    the longest prompt; under vLLM's policies the head of the running list, which is served first, would have
    got one.
    """

    def __init__(self, config: SchedulerConfig, replica: int = 0) -> None:
        chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        chunk = min(chunk, config.max_num_scheduled_tokens or chunk, config.max_num_batched_tokens)
        self._most_steps = 1000 + _PATIENCE * -(-config.max_model_len // chunk)
        self._replica = replica
        self._steps_without_token = 0
        self._preemptions_then = 0
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
        if self._idle_attempts > 1:
            raise StuckError("deadlock", self._replica, str(examine(engine)))
        if preempted:
            self.on_step(engine, gave_tokens=False)

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
