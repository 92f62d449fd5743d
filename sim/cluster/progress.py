"""The guard against a simulation that runs without getting anywhere."""

from __future__ import annotations

from scheduler import EngineCore, SchedulerConfig

_PATIENCE = 10


class StuckError(RuntimeError):
    """No request would ever get another token; the message says who waits for what."""


class ProgressGuard:
    """Watches one engine and raises `StuckError` with a diagnosis.

    Deadlock: nothing is in flight, requests are unfinished, and the scheduler twice in a row neither
    schedules nor preempts anything. Livelock: far more steps without a single token than the head of the
    running list, which is served first, needs to compute the longest prompt.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        chunk = min(chunk, config.max_num_batched_tokens)
        self._most_steps = 1000 + _PATIENCE * -(-config.max_model_len // chunk)
        self._steps_without_token = 0
        self._idle_attempts = 0

    def on_step(self, engine: EngineCore, *, gave_tokens: bool) -> None:
        """A step has ended."""
        self._idle_attempts = 0
        if gave_tokens:
            self._steps_without_token = 0
            return
        self._steps_without_token += 1
        if self._steps_without_token > self._most_steps:
            raise StuckError(
                f"livelock: {self._steps_without_token} steps without a token while "
                f"{engine.num_preemptions} preemptions happened; {_who_waits(engine)}"
            )

    def on_empty_schedule(self, engine: EngineCore, *, preempted: bool) -> None:
        """The scheduler formed an empty batch while nothing was in flight."""
        if not engine.has_unfinished_requests():
            return
        self._idle_attempts = 0 if preempted else self._idle_attempts + 1
        if self._idle_attempts > 1:
            raise StuckError(f"deadlock: nothing can be scheduled; {_who_waits(engine)}")
        if preempted:
            self.on_step(engine, gave_tokens=False)


def _who_waits(engine: EngineCore) -> str:
    kv = engine.kv_cache
    known = [*engine.running[:3], *engine.waiting][:4]
    some = "; ".join(
        f"request {r.request_id} {r.status.name}, {r.num_computed_tokens} of {r.num_tokens} tokens computed"
        for r in known
    )
    return (
        f"{engine.num_running} running, {engine.num_waiting} waiting, "
        f"{kv.num_free_blocks} of {kv.num_blocks} KV blocks free: {some}"
    )
