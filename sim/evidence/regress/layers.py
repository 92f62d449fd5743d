"""What each layer does with the same input: fingerprints that tell which layer changed.

Every probe is given the settings, the requests and the number of KV blocks that the baseline recorded, so
what another layer did to them does not show:

* **cost model**: seconds of steps of fixed shapes;
* **memory plan**: the KV blocks that it finds for the settings;
* **scheduler**: every decision while the requests come, one step taking as long as any other. The engine is
  driven here step by step, without a cluster around it;
* **cluster**: what becomes of every request in the whole simulation under the same constant step time: the
  router, the step loop, and what only it can drive (drafts, grammars, KV outside the engine). It rests on
  the scheduler, so its own change is known only where the scheduler's decisions stayed as they were.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cost_models import StepCost, StepShape
from cost_models.step_cost import DecodeRun
from scheduler import EngineCore, Request, SchedulerOutput
from sim.cluster.model_runner import FixedDrafter
from sim.cluster.replica_spec import ReplicaSpec
from sim.evidence.regress.baseline import Decisions, Dispatch, Probe
from sim.scenario import Scenario
from sim.setup import EngineSetup, engine_setup
from sim.simulation import simulate_workload
from sim.workload.table import Workload

DECODES = (1, 8, 32, 128)
CONTEXTS = (256, 4096)
CHUNKS = (16, 256, 2048)
MARK_EVERY = 25
"""Every so many steps the digest so far is kept, so that one can say from when on decisions part."""

_MOST_STEPS = 200_000


class ConstantTimer:
    """Every step takes the same time on the GPU and none on the host."""

    def __init__(self, step_s: float) -> None:
        self._cost = StepCost(step_s, 0.0, "compute", step_s)

    def step(self, shape: StepShape) -> StepCost:
        """The same for any shape."""
        return self._cost

    def decode_step(
        self, num_decodes: int, decode_context_tokens: int, max_decode_context_tokens: int
    ) -> StepCost:
        """The same."""
        return self._cost

    def decode_run(
        self, num_decodes: int, decode_context_tokens: int, max_decode_context_tokens: int, num_steps: int
    ) -> DecodeRun:
        """The same again and again."""
        step_s = self._cost.gpu_s
        return DecodeRun(0.0, [step_s] * num_steps, [step_s] * num_steps, [0] * num_steps)


def probe(
    scenario: Scenario, workload: Workload, num_blocks: int | None, step_s: float, allow_plugins: bool
) -> Probe:
    """The fingerprints of all layers for these inputs; `num_blocks` None: as many as the plan finds."""
    setup = engine_setup(scenario, allow_plugins=allow_plugins)
    planned = setup.replica.kv_cache.num_blocks
    kv_cache = replace(setup.replica.kv_cache, num_blocks=num_blocks or planned)
    fixed = replace(
        setup.replica,
        kv_cache=kv_cache,
        timer=ConstantTimer(step_s),
        front_end_s=0.0,
        front_end_stream_s=0.0,
    )
    if fixed.speculation is not None:
        section = setup.engine.speculative_config
        assert section is not None
        drafter = FixedDrafter(section.num_speculative_tokens, 0.0, section.drafts_by_batch)
        fixed = replace(fixed, speculation=replace(fixed.speculation, drafter=drafter))
    return {
        "step_s": step_s,
        "num_blocks": planned,
        "step_costs_s": step_costs(setup),
        "decisions": decisions(fixed, workload, step_s),
        "dispatch": dispatch(scenario, replace(setup, replica=fixed), workload, step_s),
    }


# --- cost model -------------------------------------------------------------------------------------------


def step_costs(setup: EngineSetup) -> dict[str, list[float]]:
    """Seconds on GPU and host of steps of fixed shapes, by what they hold; and of the front end."""
    replica = setup.replica
    found = {}
    for name, shape in _shapes(replica.windows):
        cost = replica.timer.step(shape)
        found[name] = [float(cost.gpu_s), float(cost.host_s)]
    found["front end"] = [0.0, replica.front_end_s]
    found["front end by stream"] = [0.0, replica.front_end_stream_s]
    return found


def _shapes(windows: tuple[int, ...]) -> Iterator[tuple[str, StepShape]]:
    for context in CONTEXTS:
        for count in DECODES:
            yield f"{count} decodes at {context} tokens", _shape(windows, count, context, ())
    for tokens in CHUNKS:
        for prefix in (0, 4096):
            yield f"prefill of {tokens} tokens after {prefix}", _shape(windows, 0, 0, ((tokens, prefix),))
    yield "32 decodes and a prefill of 512", _shape(windows, 32, 1024, ((512, 0),))


def _shape(
    windows: tuple[int, ...], count: int, context: int, chunks: tuple[tuple[int, int], ...]
) -> StepShape:
    return StepShape(
        num_tokens=count + sum(tokens for tokens, _ in chunks),
        num_decodes=count,
        decode_context_tokens=count * context,
        max_decode_context_tokens=context if count else 0,
        window_context_tokens=tuple(count * min(context, window) for window in windows),
        prefill_chunks=chunks,
        num_sampled=count + len(chunks),
        num_requests=count + len(chunks),
    )


# --- scheduler --------------------------------------------------------------------------------------------


def decisions(spec: ReplicaSpec, workload: Workload, step_s: float) -> Decisions | None:
    """Digest and counts of every decision of one engine that gets all requests, in steps of equal length.

    None for an engine with features that need a cluster around it: drafts, grammars, KV outside the engine.
    """
    if spec.speculation or spec.offload or spec.external_cache or spec.pause_events:
        return None
    if spec.grammars is not None and spec.grammars(workload.table) is not None:
        return None
    return _Drive(spec, workload, step_s).run()


class _Drive:
    """One engine, stepped by hand; requests end by their lengths, so no token is an end."""

    def __init__(self, spec: ReplicaSpec, workload: Workload, step_s: float) -> None:
        self._engine = EngineCore(
            spec.scheduler,
            spec.kv_cache,
            victim_policy=spec.victim_policy() if spec.victim_policy else None,
            waiting_order=spec.waiting_order() if spec.waiting_order else None,
            release=spec.release,
        )
        self._depth = spec.depth
        table, longest = workload.table, spec.scheduler.max_model_len
        fits = ~table.rejected & (table.prompt_tokens < longest - 1)
        due_step = np.ceil(table.arrival_s / step_s).astype(np.int64)
        order = np.argsort(due_step, kind="stable")
        self._due = deque((int(due_step[row]), int(row)) for row in order if fits[row])
        self._table, self._longest = table, longest
        self._in_flight: deque[SchedulerOutput] = deque()
        self._digest = hashlib.sha256()
        self._counts = dict.fromkeys(("steps", "scheduled_tokens", "preemptions", "admissions"), 0)
        self._marks: list[str] = []

    def run(self) -> Decisions:
        engine, in_flight, now, idle = self._engine, self._in_flight, 0, 1
        while self._counts["steps"] < _MOST_STEPS:
            while self._due and self._due[0][0] <= now:
                self._add(self._due.popleft()[1])
            if engine.has_work() and len(in_flight) < self._depth:
                output = engine.schedule()
                self._note(output)
                if output.total_num_scheduled_tokens:
                    in_flight.append(output)
                    idle = 1
                    continue
                engine.update(output, self._sampled)
            if in_flight:
                output = in_flight.popleft()
                engine.update(output, self._sampled)
                now += 1
            elif self._due:
                now = max(now + 1, self._due[0][0])
            elif engine.has_work() and idle < engine.decode_spacing:
                idle += 1  # nobody is due to decode yet
            else:
                break
        counts = self._counts
        return {
            "steps": counts["steps"],
            "scheduled_tokens": counts["scheduled_tokens"],
            "preemptions": counts["preemptions"],
            "admissions": counts["admissions"],
            "digest": self._digest.hexdigest()[:16],
            "marks": self._marks,
        }

    def _add(self, row: int) -> None:
        table = self._table
        prompt = int(table.prompt_tokens[row])
        guesses, adapters = table.expected_output_tokens, table.adapter
        self._engine.add_request(
            Request(
                row,
                table.prompt_ranges(row),
                max(1, min(int(table.output_tokens[row]), self._longest - prompt)),
                arrival_time=float(table.arrival_s[row]),
                priority=int(table.priority[row]),
                client_index=int(table.class_index[row]),
                ignore_eos=True,
                expected_output_tokens=None if guesses is None else float(guesses[row]),
                lora_name=None
                if adapters is None or adapters[row] < 0
                else table.adapter_names[int(adapters[row])],
            )
        )

    def _sampled(self, output: SchedulerOutput) -> list[list[int]]:
        """The next token of each request that samples; consecutive ids, as in the simulation."""
        start = self._table.output_start
        return [
            [start(request.request_id) + request.num_output_tokens]
            if samples and not request.is_finished
            else []
            for request, samples in zip(output.requests, output.samples, strict=True)
        ]

    def _note(self, output: SchedulerOutput) -> None:
        decided = (
            [request.request_id for request in output.requests],
            output.num_scheduled_tokens,
            output.num_computed_before,
            [request.request_id for request in output.preempted],
            self._engine.kv_cache.num_used_blocks,
        )
        self._digest.update(repr(decided).encode())
        counts = self._counts
        counts["steps"] += 1
        counts["scheduled_tokens"] += output.total_num_scheduled_tokens
        counts["preemptions"] += len(output.preempted)
        counts["admissions"] += len(output.new) + len(output.resumed)
        if counts["steps"] % MARK_EVERY == 0:
            self._marks.append(self._digest.hexdigest()[:4])


# --- cluster ----------------------------------------------------------------------------------------------


def dispatch(scenario: Scenario, setup: EngineSetup, workload: Workload, step_s: float) -> Dispatch:
    """Digest and counts of what became of every request in the simulation, in whole numbers.

    Times enter as numbers of steps: they are sums of one constant, and no rounding of a machine shows.
    """
    result = simulate_workload(scenario, setup, workload, plain=True, keep_steps=False)
    recorder, tokens = result.recording
    log = recorder.requests
    first, last = (np.full(len(log.status), -1, dtype=np.int64) for _ in range(2))
    first[tokens.request[::-1]] = tokens.first_step[::-1]
    last[tokens.request] = tokens.first_step + tokens.num_steps
    columns = (
        log.replica,
        log.status,
        log.output_tokens,
        log.cached_tokens,
        log.num_preemptions,
        log.recomputed_tokens,
        first,
        last,
    )
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.array(column, dtype=np.int64).tobytes())
    return {
        "steps": [steps.num_steps for steps in recorder.steps],
        "output_tokens": int(np.sum(np.array(log.output_tokens))),
        "digest": digest.hexdigest()[:16],
    }
