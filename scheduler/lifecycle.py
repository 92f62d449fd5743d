"""The ends of a request's life: it is added, it is finished from outside, its blocks are released."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.request import Request
from scheduler.state import EngineState
from scheduler.status import WAITING, RequestStatus


def add(state: EngineState, request: Request) -> None:
    """Enqueue a new request."""
    state.requests[request.request_id] = request
    enqueue(state, request)
    if state.kv_cache.hasher.num_numbered > state.kv_cache.hasher.sweep_at:
        state.sweep_hashes()


def enqueue(state: EngineState, request: Request) -> None:
    """A request waits from now on."""
    state.waiting.add(request)
    if request.status is not WAITING:
        state.interval.defer(request)


def finish(state: EngineState, requests: Iterable[Request], status: RequestStatus) -> None:
    """End requests from outside (abort, error), one after another, whatever they are doing."""
    ending = [request for request in dict.fromkeys(requests) if not request.is_finished]
    leaving = set(ending)
    if not leaving:
        return
    for request in ending:
        if state.cohort is not None and request.member is not None:
            state.cohort.leave(request)
    if any(request.status is RequestStatus.RUNNING for request in ending):
        state.running[:] = [request for request in state.running if request not in leaving]
    if any(request.status is not RequestStatus.RUNNING for request in ending):
        state.waiting.remove({request for request in ending if request.status is not RequestStatus.RUNNING})
        for request in ending:
            state.interval.undefer(request)
    for request in ending:
        loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        if loading:
            loading = request.request_id not in state.received_loads
            state.received_loads.discard(request.request_id)
            state.failed_loads.discard(request.request_id)
        if request.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            state.num_sessions_idle -= 1
        request.move_to(status)
        end(state, request, blocks_are_being_written=loading)


def end(state: EngineState, request: Request, *, blocks_are_being_written: bool = False) -> None:
    """A request has got its final status: report it, and release its blocks unless someone still needs them.

    Blocks that a load still writes into, or that the connector still sends, are released when it says so.
    """
    delayed = state.connector is not None and state.connector.delays_free(request)
    state.finished_req_ids.append(request.request_id)
    if state.finished_by_client is not None:
        state.finished_by_client.setdefault(request.client_index, set()).add(request.request_id)
    if state.prefills_under_way:
        state.prefills_under_way.pop(request.request_id, None)
    if not delayed and not blocks_are_being_written:
        release(state, request)


def release(state: EngineState, request: Request) -> None:
    """Give an ended request's blocks back and forget it."""
    state.free_blocks(request)
    request.block_keys.clear()
    if request.request_id in state.requests:
        del state.requests[request.request_id]


def reset_prefix_cache(state: EngineState, preempt_running: bool) -> tuple[bool, list[Request]]:
    """Empty the prefix cache; returns success and whom it preempted, in that order.

    It is refused while blocks are in use. With `preempt_running` the running requests give theirs up first,
    from the tail, so that they keep their order at the front of the queue; if waiting requests hold blocks it
    is then still refused, and the preempted stay preempted.
    """
    preempted = []
    if preempt_running:
        if state.cohort is not None:
            state.cohort.dissolve()
        while state.running:
            request = state.running.pop()
            state.preempt(request, by_reset=True)
            preempted.append(request)
    return state.kv_cache.reset(), preempted
