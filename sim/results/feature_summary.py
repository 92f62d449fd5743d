"""What the summary says of the features that a scenario switches on; nothing of the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler import EngineCore
from sim.cluster.external_cache import ExternalCache, LruBlocks
from sim.cluster.recorder import RequestLog, Status
from sim.cluster.speculation import SpeculativeModelRunner
from sim.cluster.world import World
from sim.values import Json
from sim.workload import RequestTable


def feature_summary(world: World, table: RequestTable) -> dict[str, Json]:
    """Counts over the whole run, warm-up included; `vllm bench serve` has names for those of speculation."""
    engines = [replica.engine for replica in world.replicas]
    found: dict[str, Json] = {}
    if isinstance(world.model, SpeculativeModelRunner):
        found |= _speculation(engines, world.model)
    caches = [connector for connector in world.connectors if isinstance(connector, ExternalCache)]
    if caches:
        found |= _external_cache(engines, caches, world.clock_s)
    compilers = [replica.compiler for replica in world.replicas if replica.compiler is not None]
    if compilers:
        found |= {
            "grammar_requests": sum(compiler.num_asked for compiler in compilers),
            "grammar_cache_hits": sum(compiler.num_hits for compiler in compilers),
            "grammars_compiled": sum(compiler.num_compiled for compiler in compilers),
        }
    log = world.recorder.requests
    if table.turn_after is not None:
        found |= _sessions(log, table)
    if Status.ABORTED in log.status:
        aborted = np.array(log.status) == Status.ABORTED
        found |= {"aborted_output_tokens": int(np.array(log.output_tokens)[aborted].sum())}
    return found


def _speculation(engines: list[EngineCore], model: SpeculativeModelRunner) -> dict[str, Json]:
    """As in `vllm bench serve`: the acceptance rate is a percentage of draft tokens, the acceptance length
    counts the token that a step yields anyway, rates by position are shares of drafts.
    """
    stats = [engine.spec_decode_stats for engine in engines]
    drafts = sum(each.num_drafts for each in stats)
    tokens = sum(each.num_draft_tokens for each in stats)
    accepted = sum(each.num_accepted_tokens for each in stats)
    verified = model.num_verified
    return {
        "spec_decode_acceptance_rate": 100.0 * accepted / tokens if tokens else None,
        "spec_decode_acceptance_length": 1.0 + accepted / drafts if drafts else None,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            count / verified if verified else 0.0 for count in model.accepted_by_position
        ],
    }


def _external_cache(
    engines: list[EngineCore], caches: list[ExternalCache], clock_s: float
) -> dict[str, Json]:
    stats = [engine.connector_prefix_cache_stats for engine in engines]
    queries = sum(each.queries + each.preempted_queries for each in stats)
    hits = sum(each.hits + each.preempted_hits for each in stats)
    links = {id(cache.link): cache.link for cache in caches}.values()
    contents = {id(cache.contents): cache.contents for cache in caches}.values()
    found: dict[str, Json] = {
        "external_prefix_cache_queries": queries,
        "external_prefix_cache_hits": hits,
        "external_prefix_cache_hit_rate": hits / queries if queries else None,
        "external_cache_loads": sum(cache.num_loads for cache in caches),
        "external_cache_loaded_bytes": sum(link.num_bytes for link in links),
        "external_cache_link_busy_share": (
            sum(link.busy_s for link in links) / (len(links) * clock_s) if clock_s else None
        ),
    }
    evicted = [each.num_evicted for each in contents if isinstance(each, LruBlocks)]
    return found | ({"external_cache_evicted_blocks": sum(evicted)} if evicted else {})


def _sessions(log: RequestLog, table: RequestTable) -> dict[str, Json]:
    """Sessions that began, turns that were served, and sessions that ended before their last turn."""
    assert table.turn_after is not None
    status = np.array(log.status)
    first, inside = table.turn_after < 0, table.session >= 0
    left = turns_given_up(status, table.turn_after)
    return {
        "num_sessions": int((first & inside & (status != Status.NOT_SENT)).sum()),
        "num_turns_finished": int((inside & (status == Status.FINISHED)).sum()),
        "num_sessions_left_early": int((left & ~left[table.turn_after]).sum()),
    }


def turns_given_up(status: NDArray[np.int8], turn_after: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Turns that were never sent because one before them was refused or aborted."""
    given_up = np.zeros(len(status), dtype=np.bool_)
    if turn_after is None:
        return given_up
    failed = np.isin(status, (Status.ABORTED, Status.REJECTED))
    while True:
        more = (turn_after >= 0) & (failed | given_up)[turn_after] & (status == Status.NOT_SENT) & ~given_up
        if not more.any():
            return given_up
        given_up |= more
