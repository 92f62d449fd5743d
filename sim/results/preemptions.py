"""The accounts of a run's preemptions: a table by request, numbers for the summary, and a verdict in words.

One production log of vLLM had 95 % of victims preempted once and nobody more than four times: beyond that, a
run is called thrashing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler import EngineCore
from scheduler.stats import PreemptionAccount
from sim.cluster.recorder import Recorder
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd

    from sim.cluster.progress import StuckError

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
    """What a reader must be told in words."""
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
