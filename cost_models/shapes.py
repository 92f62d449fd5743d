"""What a step is, as far as time is concerned (StepShape), and what it costs (StepCost)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class StepShape:
    """One engine step, as sums over the requests in it.

    num_tokens: all scheduled tokens, decodes, drafts and prefill chunks together.
    num_decodes: requests with one new token (plus drafts) on an existing context.
    decode_context_tokens: sum over those of the context each attends to, the new token included.
    max_decode_context_tokens: the longest of those contexts.
    window_context_tokens: per attention window of the model, the sum of min(context, window); () if it has
    none.
    prefill_chunks: (chunk tokens, prefix tokens already in KV) of every other request.
    num_sampled: rows that go through the head and the sampler.
    num_requests: requests in the step.
    num_lora_adapters: distinct LoRA adapters among the requests.
    """

    num_tokens: int
    num_decodes: int = 0
    decode_context_tokens: int = 0
    max_decode_context_tokens: int = 0
    window_context_tokens: tuple[int, ...] = ()
    prefill_chunks: tuple[tuple[int, int], ...] = ()
    num_sampled: int = 0
    num_requests: int = 0
    num_lora_adapters: int = 0


class StepCost(NamedTuple):
    """Seconds of one step.

    gpu_s: from the first to the last kernel of the step, through all pipeline stages.
    host_s: CPU work for the step: scheduling, input preparation, output handling. An engine with asynchronous
        scheduling does it while the GPU works on the step before.
    bound: the largest term: compute, weights, kv, comm, latency or host.
    stage_s: the slowest pipeline stage: the time until the next batch may enter. Equals gpu_s without
    pipelining.
    """

    gpu_s: float
    host_s: float
    bound: str
    stage_s: float


class DecodeRun(NamedTuple):
    """Seconds of decode steps in a row; `gpu_s`, `stage_s` and `bounds` have one entry a step (see
    `StepCost`). `bounds` are places in `BOUNDS`.
    """

    host_s: float
    gpu_s: list[float]
    stage_s: list[float]
    bounds: list[int]


BOUNDS = ("compute", "weights", "kv", "comm", "latency", "host")
