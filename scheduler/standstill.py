"""Why an engine stands still: nothing is in flight, requests are unfinished, and a step has come out empty.

A real engine can deadlock. Waiting requests that hold KV blocks (streaming sessions between two inputs, loads
from outside) are never preempted, and a head of the queue that cannot be allocated stops the pass before it
reaches them. A drafter that reads ahead wants its tokens in one step, and a cap on long prompts may not let
them be. `examine` only reads. It says who holds what, what the head needs, and which events from outside
could still change anything; whether any of these is to be expected is for the caller to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduler.engine_core import EngineCore
from scheduler.request import Request, RequestStatus

OutsideEvent = tuple[Literal["load", "send", "grammar", "input", "connector"], int]
"""What could come from outside, and the request it is about: the end of a load or of a send, a compiled
grammar, the next input (or the end) of a session, a connector's answer."""

_AWAITED: dict[RequestStatus, Literal["load", "grammar", "input"]] = {
    RequestStatus.WAITING_FOR_REMOTE_KVS: "load",
    RequestStatus.WAITING_FOR_FSM: "grammar",
    RequestStatus.WAITING_FOR_STREAMING_REQ: "input",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A request that holds KV blocks."""

    request_id: int
    status: RequestStatus
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Standstill:
    """Why nothing moves."""

    reason: str
    head: int | None
    """The request that stops the waiting queue, None if no waiting request does."""
    needed_blocks: int
    """Free blocks that the head needs to be admitted; 0 if blocks are not its problem."""
    free_blocks: int
    holders: tuple[Holder, ...]
    """Who holds blocks, the most first."""
    waits_for: tuple[OutsideEvent, ...]
    """Events from outside that could end the standstill; none: it lasts for ever."""

    def __str__(self) -> str:
        shown = ", ".join(
            f"request {h.request_id} ({h.status.name}) {h.num_blocks}" for h in self.holders[:5]
        )
        more = f" and {len(self.holders) - 5} more" if len(self.holders) > 5 else ""
        held = f"; blocks are held by {shown}{more}" if shown else ""
        return f"{self.reason}; {self.free_blocks} blocks are free{held}"


def examine(engine: EngineCore) -> Standstill:
    """Look at an engine that has nothing in flight and schedules nothing."""
    reasons = [_why_it_does_not_run(engine, request) for request in engine.running[:3]]
    waits_for: list[OutsideEvent] = []
    head, needed = None, 0
    if _idle_sessions_take_all_places(engine):
        reasons.append(f"{engine.state.num_sessions_idle} idle sessions take all places")
    for request in engine.waiting:
        awaited = _awaited(engine, request)
        if awaited is not None:
            waits_for.append((awaited, request.request_id))
            continue
        needed, lacking = _what_it_lacks(engine, request)
        if engine.starves_beside_the_drafter(lacking):
            reasons.append(_starvation(engine, request, lacking))
            continue  # it is passed over, and does not stop those behind it
        too_long = not engine.config.enable_chunked_prefill and (
            engine.capped(lacking) > engine.config.max_num_batched_tokens
        )
        if needed or too_long:
            head = request
            reasons.append(_why_it_is_not_admitted(engine, request, needed))
            break
        if engine.state.connector is not None:
            waits_for.append(("connector", request.request_id))
    waits_for += _who_could_give_blocks_back(engine)
    if not reasons:
        reasons.append("every waiting request waits for something outside")
    holders = [
        Holder(request.request_id, request.status, sum(map(len, request.block_tables)))
        for request in engine.kv_cache.holders.values()
    ]
    return Standstill(
        reason="; ".join(reasons),
        head=None if head is None else head.request_id,
        needed_blocks=needed,
        free_blocks=engine.kv_cache.num_free_blocks,
        holders=tuple(sorted(holders, key=lambda holder: (-holder.num_blocks, holder.request_id))),
        waits_for=tuple(dict.fromkeys(waits_for)),
    )


def _idle_sessions_take_all_places(engine: EngineCore) -> bool:
    places = min(engine.config.max_active or engine.config.max_num_seqs, engine.config.max_num_seqs)
    return engine.state.rules.idle_sessions_take_a_place and engine.state.num_sessions_idle >= places


def _awaited(engine: EngineCore, request: Request) -> Literal["load", "grammar", "input"] | None:
    """What keeps a gate from letting the request pass."""
    if request.request_id in engine.state.received_loads or request.request_id in engine.gates.ready_grammars:
        return None
    return _AWAITED.get(request.status)


def _what_it_lacks(engine: EngineCore, request: Request) -> tuple[int, int]:
    """What a waiting request needs for its first step.

    Returns the free blocks that its admission wants if there are not so many, else 0; and its tokens that are
    not computed.
    """
    kv_cache, config = engine.kv_cache, engine.config
    computed, hits = request.num_computed_tokens, kv_cache.no_hits()
    if not computed:
        if kv_cache.caching and not request.skip_reading_prefix_cache:
            hits = kv_cache.find_hits(request)
        computed = hits.num_tokens + (request.num_external_tokens if engine.state.connector else 0)
    lacking = request.num_tokens - computed
    first = min(engine.capped(lacking), config.max_num_batched_tokens)
    slots = min(computed + first, config.max_model_len)
    needed = kv_cache.num_blocks_for(request, slots, hits, config.max_num_batched_tokens)
    needed = engine.admission_room.num_wanted(request, needed, hits)
    return needed if needed > kv_cache.num_free_blocks else 0, lacking


def _who_could_give_blocks_back(engine: EngineCore) -> list[OutsideEvent]:
    """Holders outside the running list whose blocks a client or a connector may set free."""
    events: list[OutsideEvent] = []
    for request in engine.kv_cache.holders.values():
        if request.is_finished:
            events.append(("send", request.request_id))
        elif request.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            events.append(("input", request.request_id))
    return events


def _why_it_does_not_run(engine: EngineCore, request: Request) -> str:
    in_flight = request.num_output_placeholders
    lacking = request.num_tokens + in_flight + request.num_draft_tokens - request.num_computed_tokens
    if engine.starves_beside_the_drafter(lacking):
        return _starvation(engine, request, lacking)
    if in_flight:
        return (
            f"request {request.request_id} runs and counts {in_flight} tokens in flight that will never come"
        )
    return f"request {request.request_id} runs and has nothing left to compute"


def _starvation(engine: EngineCore, request: Request, lacking: int) -> str:
    return (
        f"request {request.request_id} lacks {lacking} tokens, which the drafter reads ahead over and so "
        f"must come in one step, but a step gives a long prompt no more than "
        f"{engine.most_of_a_prompt(lacking)}"
    )


def _why_it_is_not_admitted(engine: EngineCore, request: Request, needed: int) -> str:
    head = f"request {request.request_id} at the head of the waiting queue"
    if needed:
        return f"{head} needs {needed} KV blocks"
    return (
        f"{head} needs more than the {engine.config.max_num_batched_tokens} tokens of a step, "
        "and prompts must not be cut"
    )
