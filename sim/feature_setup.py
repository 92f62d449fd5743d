"""From the features that a scenario switches on to the parts of a replica, and to the memory they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cost_models import Gpu, MemoryPlan, Model, Parallelism, StepCostModel, model, weight_dtype
from cost_models.layers import attention_linears, ffn_linears, weights_bytes
from cost_models.memory import kv_bytes_per_token
from cost_models.step_cost import model_weight_dtype
from scheduler import SpeculativeConfig
from sim.cluster.external_cache import ExternalCacheSpec
from sim.cluster.grammars import GrammarSpec
from sim.cluster.speculation import Acceptance, Drafter, FixedDrafter, ModelDrafter, SpeculationSpec
from sim.random_streams import streams
from sim.scenario import EngineSection, Scenario
from sim.scenario.cluster import LruHits
from sim.scenario.engine import SpeculativeSection
from sim.workload import RequestTable
from sim.workload.draws import draw_times_s

_LORA_BYTES = 2
_PACKED = {"qkv": 3, "gate_up": 2}
"""Layers that vLLM has merged; each of the merged ones has an adapter of its own."""


def speculative_config(engine: EngineSection) -> SpeculativeConfig | None:
    """What the scheduler needs to know of speculation."""
    section = engine.speculative_config
    if section is None:
        return None
    return SpeculativeConfig(
        section.method, section.num_speculative_tokens, drafts_by_batch=section.drafts_by_batch
    )


def drafting_model(section: SpeculativeSection, target: Model) -> Model | None:
    """The model that drafts, None for ngram. An EAGLE drafter is one more layer of the target's kind."""
    if section.method == "ngram":
        return None
    if section.model is not None:
        return model(section.model).model
    moe = replace(target.moe, num_layers=1) if target.moe else None
    return replace(target, name=f"{target.name} EAGLE", num_layers=1, moe=moe, sliding_window=None)


def speculation_spec(
    scenario: Scenario, engine: EngineSection, target: Model, part: Gpu, weights: str
) -> SpeculationSpec | None:
    """Who drafts, and how lucky the drafts are; `engine` has its defaults filled in, `weights` is the
    target's dtype.
    """
    section = engine.speculative_config
    if section is None:
        return None
    acceptance = Acceptance(section.rates, streams(scenario.seed)("acceptance"))
    return SpeculationSpec(acceptance, _drafter(section, engine, target, part, weights))


def _drafter(
    section: SpeculativeSection, engine: EngineSection, target: Model, part: Gpu, weights: str
) -> Drafter:
    draft = drafting_model(section, target)
    if draft is None or section.draft_pass_s is not None:
        return FixedDrafter(
            section.num_speculative_tokens, section.draft_pass_s or 0.0, section.drafts_by_batch
        )
    timer = StepCostModel.build(
        draft,
        part,
        Parallelism(engine.tensor_parallel_size),
        weight_dtype=_draft_weights(section, weights),
        kv_cache_dtype=engine.kv_cache_dtype,
        engine_version=engine.version,
        async_scheduling=engine.async_scheduling,
        enforce_eager=engine.enforce_eager,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
    )
    return ModelDrafter(timer, section.num_speculative_tokens, section.drafts_by_batch)


def _draft_weights(section: SpeculativeSection, weights: str) -> str:
    """The drafter's weight dtype: an EAGLE layer has the target's, a small model its own."""
    return weights if section.model is None else model(section.model).weight_dtype or "auto"


def plan_with_features(
    plan: MemoryPlan, engine: EngineSection, target: Model, parallel: Parallelism, weights: str
) -> MemoryPlan:
    """The memory plan less what a drafter and the slots for adapters take from the KV cache.

    The plan may be left with no block at all.
    """
    taken_bytes, more_per_token = 0.0, 0
    section = engine.speculative_config
    draft = None if section is None else drafting_model(section, target)
    if section is not None and draft is not None:
        dtype = model_weight_dtype(draft, _draft_weights(section, weights))
        taken_bytes += weights_bytes(draft, parallel, dtype)
        if section.model is None:  # EAGLE shares the target's embedding and head: a second layer more is all
            two = replace(draft, num_layers=2, moe=replace(draft.moe, num_layers=2) if draft.moe else None)
            taken_bytes = weights_bytes(two, parallel, dtype) - taken_bytes
        more_per_token += kv_bytes_per_token(draft, parallel, engine.kv_cache_dtype)
    if engine.lora is not None:
        taken_bytes += lora_bytes(target, parallel, engine.lora.max_loras, engine.lora.max_lora_rank)
    left = plan.kv_cache_bytes - taken_bytes
    per_token = plan.bytes_per_token + more_per_token
    return replace(
        plan,
        weights_bytes=plan.weights_bytes + taken_bytes,
        kv_cache_bytes=left,
        bytes_per_token=per_token,
        num_gpu_blocks=max(int(left // (per_token * plan.block_size)), 0),
    )


def lora_bytes(target: Model, parallel: Parallelism, max_loras: int, rank: int) -> float:
    """GPU memory that vLLM sets aside for adapters, bytes a GPU: for each slot two matrices beside every
    linear layer, rank x inputs and outputs x rank, in 16 bits. Experts have none.
    """
    dtype = weight_dtype("bf16")
    linears = attention_linears(target, parallel, dtype) + ffn_linears(target, parallel, dtype)
    elements = sum(
        rank * (_PACKED.get(linear.name, 1) * linear.k + linear.n) * linear.count
        for linear in linears
        if linear.name != "router"
    )
    return float(_LORA_BYTES * max_loras * elements)


def grammar_maker(scenario: Scenario) -> Callable[[RequestTable], GrammarSpec | None] | None:
    """How the grammars of a table of requests are compiled; None where the engine has no compiler."""
    section = scenario.engine.grammar
    if section is None:
        return None

    def make(table: RequestTable) -> GrammarSpec | None:
        if table.grammar is None:
            return None
        count = int(table.grammar.max(initial=-1)) + 1
        compile_s = draw_times_s(section.compile_s, count, streams(scenario.seed)("grammar.compile"))
        return GrammarSpec(table.grammar, compile_s, section.workers, section.cache)

    return make


def external_cache_maker(
    scenario: Scenario, target: Model, parallel: Parallelism
) -> Callable[[RequestTable], ExternalCacheSpec] | None:
    """The KV cache outside the engines, and what it has of each request of a table; None without one."""
    section = scenario.cluster.external_cache
    if section is None:
        return None
    gpus = parallel.num_gpus // (parallel.tensor if target.mla else 1)
    hits = section.hits

    def make(table: RequestTable) -> ExternalCacheSpec:
        found = None
        if not isinstance(hits, LruHits):
            draws = streams(scenario.seed)("external_cache").random(len(table))
            prompt = np.asarray(table.prompt_tokens, dtype=np.int64)
            found = np.where(draws < hits.requests, np.floor(hits.prompt * prompt), 0).astype(np.int64)
        return ExternalCacheSpec(
            bytes_per_token=gpus * kv_bytes_per_token(target, parallel, scenario.engine.kv_cache_dtype),
            bandwidth_bytes_per_s=section.bandwidth_gb_per_s * 1e9,
            latency_s=section.latency_s,
            asynchronous=section.asynchronous,
            shared=section.shared,
            capacity_tokens=hits.capacity_tokens if isinstance(hits, LruHits) else None,
            found_tokens=found,
        )

    return make
