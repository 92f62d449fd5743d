"""Laws that hold between any two steps, checked on request.

`check(engine)` looks at everything the engine knows and raises `InvariantError` with the numbers of the first
law that does not hold; `check_step(engine, output)` looks at one planned step. Both only read. They cost time
in proportion to blocks and requests, so they run in tests and when a simulation is asked to check itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from scheduler.engine_core import EngineCore
from scheduler.errors import InvariantError
from scheduler.kv_cache.interface import NULL_BLOCK
from scheduler.output import SchedulerOutput
from scheduler.request import Request, RequestStatus

_WAITING = {
    RequestStatus.WAITING,
    RequestStatus.WAITING_FOR_FSM,
    RequestStatus.WAITING_FOR_REMOTE_KVS,
    RequestStatus.WAITING_FOR_STREAMING_REQ,
    RequestStatus.PREEMPTED,
}


def check(engine: EngineCore, drafts_in_flight: Mapping[int, int] | None = None) -> None:
    """Raise `InvariantError` unless every law about blocks, queues and counts holds.

    drafts_in_flight: by request id, the drafts in steps that are scheduled and not updated yet. They count as
    computed; a synchronous engine does not know of them itself.
    """
    broken = chain(_blocks(engine), _prefix_cache(engine), _queues(engine))
    for fault in chain(broken, _progress(engine, drafts_in_flight or {})):
        raise InvariantError(fault)


def check_step(engine: EngineCore, output: SchedulerOutput) -> None:
    """Raise `InvariantError` unless a step just planned keeps its budgets."""
    for broken in _budgets(engine, output):
        raise InvariantError(broken)


def _blocks(engine: EngineCore) -> Iterator[str]:
    """Free + referenced = total; reference counts equal holders; no block is both free and held."""
    pool = engine.kv_cache.pool
    free, ref_counts = list(pool.free_queue), pool.ref_counts
    referenced = sum(1 for count in ref_counts if count > 0)
    if len(free) != pool.free_queue.size:
        yield f"the free queue has {len(free)} blocks but counts {pool.free_queue.size}"
    if len(free) + referenced != pool.num_blocks - 1:
        yield f"{len(free)} free + {referenced} referenced blocks, but {pool.num_blocks - 1} in all"
    held: Counter[int] = Counter()
    for request in engine.kv_cache.holders.values():
        for table in request.block_tables:
            held.update(block for block in table if block != NULL_BLOCK)
    if engine.state.deferred_frees is not None:
        for _, blocks in engine.state.deferred_frees.waiting:
            held.update(blocks)
    for block in range(pool.num_blocks):
        if held[block] != ref_counts[block]:
            yield f"block {block} has reference count {ref_counts[block]} but {held[block]} holders"
    for block, times in Counter(free).items():
        if times > 1 or ref_counts[block] or block == NULL_BLOCK:
            yield f"block {block} is {times} times in the free queue with {ref_counts[block]} references"


def _prefix_cache(engine: EngineCore) -> Iterator[str]:
    """Every block with a key can be found under it, and nothing else can; cached free blocks are counted."""
    pool = engine.kv_cache.pool
    keyed = {block for block, key in enumerate(pool.key_of_block) if key is not None}
    listed = list(pool.cached_blocks())
    if len(listed) != len(keyed) or set(listed) != keyed:
        yield f"{len(keyed)} blocks carry a key but {len(listed)} are listed in the prefix cache"
    cached_free = sum(1 for block in pool.free_queue if block in keyed)
    if cached_free != pool.num_cached_free:
        yield f"{cached_free} free blocks are cached but {pool.num_cached_free} are counted"


def _queues(engine: EngineCore) -> Iterator[str]:
    """Statuses agree with the queues; nobody stands in two places."""
    running, waiting = engine.running, engine.waiting
    for request, times in Counter([*running, *waiting]).items():
        if times > 1:
            yield f"request {request.request_id} stands in {times} places"
    for request in running:
        if request.status is not RequestStatus.RUNNING:
            yield f"request {request.request_id} runs with status {request.status.name}"
    for request in waiting:
        if request.status not in _WAITING:
            yield f"request {request.request_id} waits with status {request.status.name}"
    if len(running) > engine.config.max_num_seqs:
        yield f"{len(running)} requests run, at most {engine.config.max_num_seqs} may"
    idle = sum(1 for request in waiting if request.status is RequestStatus.WAITING_FOR_STREAMING_REQ)
    counted = engine.state.num_sessions_idle
    # scheduling ahead, a token in flight may end a session's turn twice: vLLM 0.16 then counts it twice as
    # well
    if idle > counted or (idle < counted and not engine.config.async_scheduling):
        yield f"{idle} sessions wait for input but {counted} are counted"
    for request in (*running, *waiting):
        if engine.requests.get(request.request_id) is not request:
            yield f"request {request.request_id} is queued but not known"


def _progress(engine: EngineCore, drafts_in_flight: Mapping[int, int]) -> Iterator[str]:
    """Computed tokens never exceed those known or in flight, and have slots; the unadmitted hold no
    blocks.
    """
    for request in engine.requests.values():
        computed = request.num_computed_tokens
        known = request.num_tokens + request.num_output_placeholders
        if not engine.config.async_scheduling:  # else they are among the placeholders
            known += drafts_in_flight.get(request.request_id, 0)
        if engine.config.speculative and (request.resumable or request.is_finished):
            # accepted drafts behind a stop token are cut, but vLLM 0.16 leaves them counted as computed
            known += engine.config.speculative.num_speculative_tokens
        if not 0 <= computed <= known:
            yield f"request {request.request_id} has {computed} computed tokens of {known} known or in flight"
        if bool(request.block_tables) != (request.request_id in engine.kv_cache.holders):
            yield f"request {request.request_id} holds blocks and is not listed, or the other way round"
        if request.block_tables:
            for table, block_size in zip(request.block_tables, engine.kv_cache.block_sizes, strict=True):
                slots = len(table) * block_size
                if slots < min(computed, engine.config.max_model_len):
                    yield f"request {request.request_id} has {computed} computed tokens in {slots} slots"
        elif computed:
            yield f"request {request.request_id} has {computed} computed tokens without blocks"


def _budgets(engine: EngineCore, output: SchedulerOutput) -> Iterator[str]:
    """No step exceeds its token budget, and what it schedules adds up."""
    config = engine.config
    budget = min(
        config.max_num_batched_tokens, config.max_num_scheduled_tokens or config.max_num_batched_tokens
    )
    total = sum(output.num_scheduled_tokens) + output.num_steady
    if total != output.total_num_scheduled_tokens or total > budget:
        said = output.total_num_scheduled_tokens
        yield f"a step schedules {total} tokens, says {said}, may schedule {budget}"
    lengths = {
        len(output.requests),
        len(output.num_scheduled_tokens),
        len(output.num_computed_before),
        len(output.samples),
        len(set(output.requests)),
    }
    if len(lengths) > 1 or len(output.requests) + output.num_steady > config.max_num_seqs:
        yield f"a step's lists have lengths {sorted(lengths)} for at most {config.max_num_seqs} requests"
    for request, count in zip(output.requests, output.num_scheduled_tokens, strict=True):
        if count < 1:
            yield f"request {request.request_id} is scheduled for {count} tokens"
        yield from _drafts(request, count, output)


def _drafts(request: Request, count: int, output: SchedulerOutput) -> Iterator[str]:
    drafts = output.scheduled_spec_decode_tokens.get(request.request_id, 0)
    if not 0 <= drafts < count:
        yield f"request {request.request_id} verifies {drafts} drafts in {count} tokens"
