"""What a step is, as far as time is concerned (StepShape), and what it costs (StepCost).

Plain classes, for one of each is made in every step.
"""

from __future__ import annotations

from typing import Final

BOUNDS: Final = ("compute", "weights", "kv", "comm", "latency", "host")


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
    """

    __slots__ = (
        "decode_context_tokens",
        "max_decode_context_tokens",
        "num_decodes",
        "num_requests",
        "num_sampled",
        "num_tokens",
        "prefill_chunks",
        "window_context_tokens",
    )

    def __init__(
        self,
        num_tokens: int,
        num_decodes: int = 0,
        decode_context_tokens: int = 0,
        max_decode_context_tokens: int = 0,
        window_context_tokens: tuple[int, ...] = (),
        prefill_chunks: tuple[tuple[int, int], ...] = (),
        num_sampled: int = 0,
        num_requests: int = 0,
    ) -> None:
        self.num_tokens = num_tokens
        self.num_decodes = num_decodes
        self.decode_context_tokens = decode_context_tokens
        self.max_decode_context_tokens = max_decode_context_tokens
        self.window_context_tokens = window_context_tokens
        self.prefill_chunks = prefill_chunks
        self.num_sampled = num_sampled
        self.num_requests = num_requests

    def _values(self) -> tuple[object, ...]:
        decodes = self.num_decodes, self.decode_context_tokens, self.max_decode_context_tokens
        counts = self.num_tokens, self.num_sampled, self.num_requests
        return *decodes, *counts, self.window_context_tokens, self.prefill_chunks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepShape) and self._values() == other._values()


class StepCost:
    """Seconds of one step.

    gpu_s: from the first to the last kernel of the step, through all pipeline stages.
    host_s: CPU work for the step: scheduling, input preparation, output handling. An engine with asynchronous
        scheduling does it while the GPU works on the step before.
    bound: the largest term: compute, weights, kv, comm, latency or host.
    stage_s: the slowest pipeline stage: the time until the next batch may enter. Equals gpu_s without
    pipelining.
    """

    __slots__ = ("bound", "gpu_s", "host_s", "stage_s")

    def __init__(self, gpu_s: float, host_s: float, bound: str, stage_s: float) -> None:
        self.gpu_s = gpu_s
        self.host_s = host_s
        self.bound = bound
        self.stage_s = stage_s

    def _values(self) -> tuple[object, ...]:
        return self.gpu_s, self.host_s, self.bound, self.stage_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepCost) and self._values() == other._values()


class DecodeRun:
    """Seconds of decode steps in a row; `gpu_s`, `stage_s` and `bounds` have one entry a step (see
    `StepCost`). `bounds` are places in `BOUNDS`.
    """

    __slots__ = ("bounds", "gpu_s", "host_s", "stage_s")

    def __init__(self, host_s: float, gpu_s: list[float], stage_s: list[float], bounds: list[int]) -> None:
        self.host_s = host_s
        self.gpu_s = gpu_s
        self.stage_s = stage_s
        self.bounds = bounds
