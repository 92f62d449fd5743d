"""What could be done about a cause: changes of the scenario, each worth a run of its own.

Only what can matter for what was found is proposed; whether it does is for the simulation to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.questions.explain.cause import Cause
from sim.questions.explain.observe import Observed
from sim.scenario.cluster import ClusterSection
from sim.scenario.engine import EngineSection
from sim.scenario.rules import knows

_THRESHOLDS = (512, 2048, 8192)
_MOST_BATCHED_TOKENS = 65_536
_VICTIMS = ("fcfs_tail", "least_computed", "most_blocks_freed")
_FOLLOWERS = {"max_num_seqs": "max_active", "max_num_batched_tokens": "max_num_scheduled_tokens"}
"""Settings of later releases that take the value of another where they are left open."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice of remedies goes by; `engine` has its defaults filled in."""

    engine: EngineSection
    cluster: ClusterSection
    cause: Cause
    peak_running: int
    longest_prompt_tokens: int
    median_prompt_tokens: float

    def matters(self, *parts: str) -> bool:
        """Whether these parts together are a tenth of the cause or more."""
        weight = self.cause.weight
        return sum(weight[part] for part in parts) >= 0.1

    @property
    def has_long_prompts(self) -> bool:
        """Whether the longest prompt is of another kind than most."""
        return self.longest_prompt_tokens >= 8 * self.median_prompt_tokens


def facts_of(observed: Observed, cause: Cause) -> Facts:
    """The facts of an observed run."""
    result = observed.result
    prompts = result.times.prompt_tokens[result.times.done]
    running = [log.kept()[2][:, 3].max(initial=0) for log in result.recording[0].steps]
    return Facts(
        result.setup.engine,
        result.scenario.cluster,
        cause,
        int(max(running, default=0)),
        int(prompts.max(initial=0)),
        float(np.median(prompts)) if len(prompts) else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change: how to call it, and the `path=value` overrides that make it."""

    label: str
    overrides: tuple[str, ...]


def candidates(facts: Facts) -> list[Candidate]:
    """Everything worth trying, settings first and GPUs last; nothing twice."""
    found = [*_blocks(facts), *_slots(facts), *_tokens(facts), *_rest(facts), *_gpus(facts)]
    return list({candidate.overrides: candidate for candidate in reversed(found)}.values())[::-1]


def _set(engine: EngineSection, name: str, value: object) -> Candidate:
    """A setting of the engine, from what it is to something else."""
    before = getattr(engine, name)
    overrides = [f"engine.{name}={str(value).lower()}"]
    follower = _FOLLOWERS.get(name)
    if follower is not None and getattr(engine, follower) == before:
        overrides.append(f"engine.{follower}=null")  # it was filled in with this one
    return Candidate(f"{name} {_shown(before)} → {_shown(value)}", tuple(overrides))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _blocks(facts: Facts) -> Iterator[Candidate]:
    """KV blocks run out: more of them, or fewer who share them, or others who have to go."""
    engine = facts.engine
    if not facts.matters("kv_blocks", "preempted", "recompute") and not facts.cause.preemption.count:
        return
    utilization = engine.gpu_memory_utilization
    if utilization is not None and utilization < 0.95:
        yield _set(engine, "gpu_memory_utilization", min(round(utilization + 0.05, 3), 0.95))
    if engine.kv_cache_dtype in ("auto", "bfloat16"):
        yield _set(engine, "kv_cache_dtype", "fp8")
    if not facts.cause.preemption.count:
        if engine.watermark:
            yield _set(engine, "watermark", 0.0)
        return
    cut = facts.longest_prompt_tokens > (engine.max_num_batched_tokens or 0)
    if cut and not engine.reserve_full_prompt:  # of a prompt that is one chunk the first chunk is the whole
        yield _set(engine, "reserve_full_prompt", True)
    for share in (0.02, 0.1):
        if share > engine.watermark:
            yield _set(engine, "watermark", share)
    for share in (0.8, 0.6):
        fewer = round(facts.peak_running * share)
        if 0 < fewer < facts.peak_running:
            yield _set(engine, "max_num_seqs", fewer)
    chosen = engine.victim_policy.kind if engine.victim_policy is not None else ""
    for victim in _VICTIMS if chosen in _VICTIMS else ():
        if victim != chosen:
            label = f"victim: {victim.replace('_', ' ')}"
            yield Candidate(label, (f"engine.victim_policy={{kind: {victim}}}",))
    if engine.preemption_mode is not None and engine.preemption_mode.kind == "recompute":
        yield Candidate("offload, not recompute", ("engine.preemption_mode={kind: offload}",))


def _slots(facts: Facts) -> Iterator[Candidate]:
    """As many run as may."""
    if facts.matters("seq_slots") and facts.engine.max_num_seqs is not None:
        for factor in (2, 4):
            yield _set(facts.engine, "max_num_seqs", factor * facts.engine.max_num_seqs)


def _tokens(facts: Facts) -> Iterator[Candidate]:
    """The token budget is used up, or what it lets in makes steps long."""
    engine, budget = facts.engine, facts.engine.max_num_batched_tokens
    assert budget is not None
    if facts.cause.metric == "itl" or (facts.cause.metric == "e2e" and facts.matters("by_prefills")):
        if facts.matters("by_prefills"):
            for part in (2, 4):
                if budget // part >= 256:
                    yield _set(engine, "max_num_batched_tokens", budget // part)
            yield from _thresholds(facts)
            if knows(engine.version, "prefill_interval") and engine.prefill_interval == 1:
                yield _set(engine, "prefill_interval", 2)
                yield _set(engine, "prefill_interval", 4)
    elif facts.matters("token_budget", "by_prefills", "prefill", "under_way"):
        for factor in (0.5, 2, 4):
            if 256 <= budget * factor <= _MOST_BATCHED_TOKENS:
                yield _set(engine, "max_num_batched_tokens", int(budget * factor))
        if facts.has_long_prompts:
            yield from _thresholds(facts)
            if knows(engine.version, "long_prefill_adaptive") and not engine.long_prefill_adaptive:
                yield _set(engine, "long_prefill_adaptive", True)
            if knows(engine.version, "prefill_interval") and engine.prefill_interval == 1:
                yield _set(engine, "prefill_interval", 4)


def _thresholds(facts: Facts) -> Iterator[Candidate]:
    """A cap on one request's tokens in a step: it bites where it is below both the budget and a prompt."""
    budget = facts.engine.max_num_batched_tokens or 0
    for threshold in _THRESHOLDS:
        bites = threshold < min(facts.longest_prompt_tokens, budget + 1)
        if bites and threshold != facts.engine.long_prefill_token_threshold:
            yield _set(facts.engine, "long_prefill_token_threshold", threshold)


def _rest(facts: Facts) -> Iterator[Candidate]:
    """The host, gates, and decode steps that are long by themselves."""
    engine = facts.engine
    if facts.matters("host") and not engine.async_scheduling:
        yield _set(engine, "async_scheduling", True)
    if facts.matters("held_back"):
        if engine.lora is not None:
            slots = engine.lora.max_loras
            yield Candidate(f"max_loras {slots} → {2 * slots}", (f"engine.lora.max_loras={2 * slots}",))
        if engine.grammar is not None:
            workers = engine.grammar.workers
            yield Candidate(
                f"grammar workers {workers} → {2 * workers}", (f"engine.grammar.workers={2 * workers}",)
            )
        if engine.prefill_interval > 1:
            yield _set(engine, "prefill_interval", 1)
    if facts.cause.metric != "ttft" and facts.matters("decode", "by_decodes"):
        fewer = facts.peak_running // 2
        if fewer:
            yield _set(engine, "max_num_seqs", fewer)
        if engine.kv_cache_dtype in ("auto", "bfloat16"):
            yield _set(engine, "kv_cache_dtype", "fp8")
    if facts.matters("prefill") and not engine.enable_prefix_caching:
        yield _set(engine, "enable_prefix_caching", True)


def _gpus(facts: Facts) -> Iterator[Candidate]:
    """More hardware: the measure of what settings can do."""
    split, replicas = facts.engine.tensor_parallel_size, facts.cluster.replicas
    yield Candidate(f"tensor parallel {split} → {2 * split}", (f"engine.tensor_parallel_size={2 * split}",))
    yield Candidate(f"replicas {replicas} → {replicas + 1}", (f"cluster.replicas={replicas + 1}",))
