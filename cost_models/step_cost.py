"""What a step is (`StepShape`), and how long it takes: what its token count fixes, plus attention.

Shapes and costs are plain classes, for one of each is made in every step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.calibration import Calibration, calibration
from cost_models.deployment import Deployment
from cost_models.engines import (
    EngineProfile,
    ServingFacts,
    cudagraph_capture_sizes,
    engine_profile,
    samples_top_p,
    serving_facts,
)
from cost_models.forward import ForwardPass, ModelAttention, RowTable
from cost_models.operators.attention import DecodeBatch

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


_INDEX: Final = {bound: index for index, bound in enumerate(BOUNDS)}
_KV: Final = _INDEX["kv"]
_HOST: Final = _INDEX["host"]


class _Decodes:
    """What a number of decoding requests fixes: about any step they are in `batch` and the fixed time
    `attention_s`, and about a step of nothing else the rest.

    total_s, stage_s: all but reading the KV cache. largest_s: the largest term but that, which is `bound`.
    """

    __slots__ = ("attention_s", "batch", "bound", "host_s", "largest_s", "stage_s", "total_s")

    def __init__(
        self,
        batch: DecodeBatch,
        attention_s: float,
        total_s: float,
        stage_s: float,
        largest_s: float,
        bound: str,
        host_s: float,
    ) -> None:
        self.batch = batch
        self.attention_s = attention_s
        self.total_s = total_s
        self.stage_s = stage_s
        self.largest_s = largest_s
        self.bound = bound
        self.host_s = host_s


def _largest(
    compute_s: float, weights_s: float, kv_s: float, comm_s: float, latency_s: float
) -> tuple[float, str]:
    """The largest term of a step, the first of equals, and its name."""
    largest_s, bound = compute_s, "compute"
    if weights_s > largest_s:
        largest_s, bound = weights_s, "weights"
    if kv_s > largest_s:
        largest_s, bound = kv_s, "kv"
    if comm_s > largest_s:
        largest_s, bound = comm_s, "comm"
    if latency_s > largest_s:
        largest_s, bound = latency_s, "latency"
    return largest_s, bound


class StepCostModel:
    """Maps a StepShape to seconds for one deployment. Pure: equal shapes cost equal time.

    Never knows the size of the KV pool: a step costs the same in a full and in an empty one.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        fitted: Calibration | None = None,
        facts: ServingFacts | None = None,
        profile: EngineProfile | None = None,
    ) -> None:
        """`fitted`, `facts` and `profile` replace what is shipped for the GPU and the release; constants of
        the machine that `fitted` is of go before `profile`.

        Raises SpecError for a split that does not divide the model.
        """
        deployment.check()
        spec, part = deployment.model, deployment.gpu
        self.deployment = deployment
        self.calibration = fitted = fitted or calibration(part.name)
        facts = facts or serving_facts(part)
        profile = profile or engine_profile(deployment.engine_version)
        machine = fitted.machine
        if not machine.is_as_shipped:
            deployment = replace(deployment, gpu=machine.gpu(part))
            fitted, profile = fitted.at_machine_speed(), machine.profile(profile)
        sizes: tuple[int, ...] = ()
        if not deployment.enforce_eager:
            sizes = cudagraph_capture_sizes(deployment.max_num_seqs, deployment.max_num_batched_tokens)
        sorts_logits = not deployment.greedy and samples_top_p(spec)
        sampler_bytes = profile.sampler_bytes_per_logit if sorts_logits else 0.0
        forward = ForwardPass(deployment, fitted, facts, sampler_bytes_per_logit=sampler_bytes)
        self._layers = RowTable(forward.layers, sizes)
        self._heads = RowTable(forward.head)
        self._attention = ModelAttention(deployment, fitted, facts)
        self._async = deployment.async_scheduling
        self._stages = deployment.parallel.pipeline
        self._decodes: dict[int, _Decodes] = {}
        self._eager_s = 0.0 if sizes else profile.eager_layer_s * spec.num_layers
        self._step_host_s = profile.step_host_s
        self._request_host_s = profile.request_host_s
        self._step_gap_s = profile.step_gap_s

    @property
    def calibration_id(self) -> str:
        """Which fitted parameters this model uses."""
        return self.calibration.calibration_id

    def host_s(self, num_requests: int) -> float:
        """CPU seconds of a step with so many requests."""
        return self._step_host_s + num_requests * self._request_host_s

    def decode_step(
        self,
        num_decodes: int,
        decode_context_tokens: int,
        max_decode_context_tokens: int,
        window_context_tokens: tuple[int, ...] = (),
    ) -> StepCost:
        """Cost of a step of nothing but decodes of one token each; O(1). Equals step() of it bit for bit."""
        known = self._known(num_decodes)
        kv_s = self._attention.decode_s(
            known.batch, num_decodes, decode_context_tokens, max_decode_context_tokens, window_context_tokens
        )
        gpu_s = known.total_s + kv_s
        if gpu_s < self._eager_s:
            gpu_s = self._eager_s
        largest_s, bound, host_s = known.largest_s, known.bound, known.host_s
        if kv_s > largest_s:
            largest_s, bound = kv_s, "kv"
        if host_s > (gpu_s if self._async else largest_s):
            bound = "host"
        stages = self._stages
        return StepCost(gpu_s, host_s, bound, gpu_s if stages == 1 else known.stage_s + kv_s / stages)

    def decode_run(
        self, num_decodes: int, decode_context_tokens: int, max_decode_context_tokens: int, num_steps: int
    ) -> DecodeRun:
        """`decode_step` of the steps in which the same requests decode on, one after another.

        The first has the sums given here, each further one a token more for every request. Bit for bit the
        values of `StepCost`, without the calls.
        """
        known = self._known(num_decodes)
        reads_s = self._attention.decode_run_s(
            known.batch, num_decodes, decode_context_tokens, max_decode_context_tokens, num_steps
        )
        total_s, fixed_s, fixed, host_s = known.total_s, known.largest_s, _INDEX[known.bound], known.host_s
        gpu_s = [total_s + kv_s for kv_s in reads_s]
        eager_s, ahead = self._eager_s, self._async
        if eager_s:
            gpu_s = [max(one_s, eager_s) for one_s in gpu_s]
        bounds = [_KV if kv_s > fixed_s else fixed for kv_s in reads_s]
        if host_s > (total_s if ahead else fixed_s):  # else no step waits for the host
            for i, hides_s in enumerate(gpu_s if ahead else reads_s):
                if host_s > hides_s:
                    bounds[i] = _HOST
        stages = self._stages
        if stages == 1:
            return DecodeRun(host_s, gpu_s, gpu_s, bounds)
        stage_fixed_s = known.stage_s
        return DecodeRun(host_s, gpu_s, [stage_fixed_s + kv_s / stages for kv_s in reads_s], bounds)

    def step(self, shape: StepShape) -> StepCost:
        """Cost of one step of any composition. Deterministic and pure."""
        decodes = shape.num_decodes
        plain = shape.num_tokens == decodes == shape.num_sampled
        if plain and not shape.prefill_chunks:
            return self.decode_step(
                decodes,
                shape.decode_context_tokens,
                shape.max_decode_context_tokens,
                shape.window_context_tokens,
            )
        compute_s, weights_s, kv_s, comm_s, latency_s = self._parts(shape)
        gpu_s = compute_s + weights_s + kv_s + comm_s + latency_s
        if gpu_s < self._eager_s:
            gpu_s = self._eager_s
        largest_s, bound = _largest(compute_s, weights_s, kv_s, comm_s, latency_s)
        host_s = self._step_host_s + shape.num_requests * self._request_host_s
        if host_s > (gpu_s if self._async else largest_s):
            bound = "host"
        if self._stages == 1:
            return StepCost(gpu_s, host_s, bound, gpu_s)
        head_s = self._heads.row(shape.num_sampled).total_s
        return StepCost(gpu_s, host_s, bound, (gpu_s - head_s) / self._stages + head_s)

    def terms(self, shape: StepShape) -> dict[str, float]:
        """Seconds of the step by what it waits for: compute, weights, kv, comm, latency, host."""
        host_s = self._step_host_s + shape.num_requests * self._request_host_s
        return dict(zip(BOUNDS, (*self._parts(shape), host_s), strict=True))

    def _parts(self, shape: StepShape) -> tuple[float, float, float, float, float]:
        """The terms of a step on the GPU in the order of `BOUNDS`."""
        layers, head = self._layers.row(shape.num_tokens), self._heads.row(shape.num_sampled)
        compute_s = layers.compute_s + head.compute_s
        weights_s = layers.weights_s + head.weights_s
        comm_s = layers.comm_s + head.comm_s
        latency_s = layers.latency_s + (head.latency_s + self._step_gap_s)
        kv_s = 0.0
        decodes, attention, chunks = shape.num_decodes, self._attention, shape.prefill_chunks
        if decodes:
            known = self._known(decodes)
            latency_s += known.attention_s
            kv_s = attention.decode_s(
                known.batch,
                decodes,
                shape.decode_context_tokens,
                shape.max_decode_context_tokens,
                shape.window_context_tokens,
            )
        if chunks:
            attention_s, write_s = attention.prefill_s(chunks)
            kv_s = attention.beside_prefill_s(kv_s, shape.max_decode_context_tokens, chunks)
            compute_s += attention_s
            kv_s += write_s
            latency_s += attention.prefill_fixed_s
        return compute_s, weights_s, kv_s, comm_s, latency_s

    def _known(self, count: int) -> _Decodes:
        """What so many decodes fix, worked out when first asked for."""
        known = self._decodes.get(count)
        if known is None:
            known = self._decodes[count] = self._new_decodes(count)
        return known

    def _new_decodes(self, count: int) -> _Decodes:
        layers, head = self._layers.row(count), self._heads.row(count)
        batch = self._attention.decode_batch(count)
        attention_s = self._attention.decode_fixed_s + self._attention.num_layers * batch.extra_s
        fixed_s = attention_s + self._step_gap_s
        largest_s, bound = _largest(
            layers.compute_s + head.compute_s,
            layers.weights_s + head.weights_s,
            0.0,
            layers.comm_s + head.comm_s,
            layers.latency_s + head.latency_s + fixed_s,
        )
        total_s = layers.total_s + head.total_s + fixed_s
        stage_s = (total_s - head.total_s) / self._stages + head.total_s
        host_s = self._step_host_s + count * self._request_host_s
        return _Decodes(batch, attention_s, total_s, stage_s, largest_s, bound, host_s)
