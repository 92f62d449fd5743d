"""What the engines counted during a run: their preemptions, and the features that a scenario switches on.

One production log of vLLM had 95 % of victims preempted once and nobody more than four times: beyond that, a
run is called thrashing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scheduler import EngineCore
from scheduler.state import PreemptionAccount
from sim.cluster.external_cache import ExternalCache, LruBlocks
from sim.cluster.model_runner import SpeculativeModelRunner
from sim.cluster.recorder import Recorder, RequestLog, Status
from sim.cluster.world import World
from sim.values import Bools, Ints, Json
from sim.workload import RequestTable

if TYPE_CHECKING:
    import pandas as pd

    from sim.cluster.clock import StuckError

USUAL_PREEMPTIONS = 4
"""Preemptions of one request up to which nobody speaks of thrashing."""


def preemption_table(recorder: Recorder, engines: Sequence[EngineCore]) -> pd.DataFrame:
    """One row for each request that was ever preempted, by id; in tokens, KV blocks and seconds."""
    import pandas as pd

    log, rows = recorder.requests, []
    for request_id, account in sorted(_accounts(engines)):
        rows.append(
            (
                request_id,
                log.replica[request_id],
                account.num_preemptions,
                account.longest_chain,
                account.num_lost_tokens,
                log.recomputed_tokens[request_id],
                account.num_reloaded_tokens,
                account.num_freed_blocks,
                account.num_rehit_blocks,
                log.stalled_s[request_id],
            )
        )
    columns = (
        "request_id replica num_preemptions longest_chain lost_tokens recomputed_tokens reloaded_tokens "
        "freed_blocks rehit_blocks stalled_s"
    )
    return pd.DataFrame(rows, columns=columns.split())


def preemption_summary(
    recorder: Recorder, engines: Sequence[EngineCore], stuck: StuckError | None
) -> dict[str, Json]:
    """Sums over the whole run, warm-up included, beside the counts of measured steps that the summary has.

    `preemption_histogram` maps the number of preemptions to the requests that had so many; a chain is a
    series of preemptions of one request without a new output token in between. Prefix hits count every
    lookup, as vLLM does; the saved tokens are those of requests that were then admitted.
    """
    accounts = [account for _, account in _accounts(engines)]
    counts = Counter(account.num_preemptions for account in accounts)
    arrived = sum(replica >= 0 for replica in recorder.requests.replica)
    histogram = {0: arrived - len(accounts)} | dict(sorted(counts.items()))
    totals = [log.totals() for log in recorder.steps]
    busy_s = sum(t.busy_s for t in totals)
    useful = sum(t.decode_tokens + t.prefill_tokens for t in totals)
    return {
        "preemption_histogram": {str(count): requests for count, requests in histogram.items()},
        "longest_preemption_chain": max((account.longest_chain for account in accounts), default=0),
        "preemption_freed_blocks": sum(account.num_freed_blocks for account in accounts),
        "preemption_rehit_blocks": sum(account.num_rehit_blocks for account in accounts),
        "preemption_reloaded_tokens": sum(account.num_reloaded_tokens for account in accounts),
        "preemption_stalled_s": float(sum(recorder.requests.stalled_s)),
        "useful_tokens_per_busy_s": useful / busy_s if busy_s else None,
        "prefix_cache_saved_tokens": sum(engine.prefix_cache_stats.saved_tokens for engine in engines),
        "kv_block_evictions": sum(engine.kv_cache.num_evictions for engine in engines),
        "progress": _verdict(counts, stuck),
    }


def preemption_notes(engines: Sequence[EngineCore], stuck: StuckError | None) -> list[str]:
    """What a reader of the results has to know about preemptions."""
    if stuck is not None:
        return [f"the run was ended by a {stuck}"]
    worst = max(_accounts(engines), key=lambda item: item[1].num_preemptions, default=None)
    if worst is None or worst[1].num_preemptions <= USUAL_PREEMPTIONS:
        return []
    victims = [account.num_preemptions for _, account in _accounts(engines)]
    often = sum(count > USUAL_PREEMPTIONS for count in victims)
    return [
        f"thrashing: {often} of {len(victims)} preempted requests lost their KV blocks more than "
        f"{USUAL_PREEMPTIONS} times, request {worst[0]} {worst[1].num_preemptions} times"
    ]


def _accounts(engines: Sequence[EngineCore]) -> list[tuple[int, PreemptionAccount]]:
    return [item for engine in engines for item in engine.preemption_accounts.by_request.items()]


def _verdict(counts: Counter[int], stuck: StuckError | None) -> str:
    if stuck is not None:
        return stuck.kind
    if not counts:
        return "no preemption"
    return "thrashing" if max(counts) > USUAL_PREEMPTIONS else "usual"


def feature_summary(world: World, table: RequestTable) -> dict[str, Json]:
    """Counts of the features that the scenario switches on, over the whole run, warm-up included.

    Those of speculation have the names of `vllm bench serve`.
    """
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
    """The counts of speculation as `vllm bench serve` has them.

    The acceptance rate is a percentage of draft tokens, the acceptance length counts the token that a step
    yields anyway, and rates by position are shares of drafts.
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
    queries = sum(each.queries for each in stats)
    hits = sum(each.hits for each in stats)
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


def turns_given_up(status: NDArray[np.int8], turn_after: Ints | None) -> Bools:
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
