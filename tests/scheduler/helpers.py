"""The world of a scheduler test in one line: an engine, some requests, a model that always has a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from typing import Any

from scheduler import EngineCore, EngineCoreOutputs, KVCacheConfig, Request, SchedulerConfig, SchedulerOutput

_CONFIG_NAMES = {f.name for f in fields(SchedulerConfig)}
_KV_NAMES = {f.name for f in fields(KVCacheConfig)}
_tails = count(1)


def make_engine(**knobs: Any) -> EngineCore:
    """An engine with 16-token blocks, 100 of them to hand out, unless a knob says otherwise."""
    config = SchedulerConfig(**{"max_model_len": 4096, **_pick(knobs, _CONFIG_NAMES)})
    kv = KVCacheConfig(**{"num_blocks": 101, **_pick(knobs, _KV_NAMES)})
    return EngineCore(config, kv, **knobs)


def _pick(knobs: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: knobs.pop(name) for name in list(knobs) if name in names}


def make_requests(
    number: int, prompt_tokens: int = 32, max_tokens: int = 100, *, shared_tokens: int = 0, **knobs: Any
) -> list[Request]:
    """Requests 0 … number - 1; their prompts differ after the first `shared_tokens`."""
    requests = []
    for i in range(number):
        tail = 1_000_000 + next(_tails) * 100_000
        prompt = ((1000, shared_tokens), (tail, prompt_tokens - shared_tokens))
        requests.append(Request(i, prompt, max_tokens, arrival_time=float(i), **knobs))
    return requests


def sample(output: SchedulerOutput, token: int = 5) -> list[list[int]]:
    """One token for every request that samples in the step."""
    return [[token] if samples else [] for samples in output.samples]


def step(
    engine: EngineCore, tokens: Sequence[list[int]] | None = None
) -> tuple[SchedulerOutput, EngineCoreOutputs]:
    """One synchronous step."""
    output = engine.schedule()
    return output, engine.update(output, sample if tokens is None else lambda _: tokens)


def run(engine: EngineCore, max_steps: int = 10_000) -> int:
    """Step until there is nothing left to do; the number of steps."""
    for steps in range(max_steps):
        if not engine.has_work():
            return steps
        step(engine)
    raise AssertionError(f"still at work after {max_steps} steps")


def scheduled(output: SchedulerOutput) -> dict[int, int]:
    """Scheduled tokens by request id, in scheduled order."""
    return {r.request_id: n for r, n in zip(output.requests, output.num_scheduled_tokens, strict=True)}


def ids(requests: Sequence[Request]) -> list[int]:
    """Request ids in order."""
    return [request.request_id for request in requests]


def free_blocks(engine: EngineCore) -> list[int]:
    """The free queue from head to tail."""
    return list(engine.kv_cache.pool.free_queue)
