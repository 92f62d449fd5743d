"""Loads in the background: requests wait for them, and some blocks of a load may turn out bad."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scheduler.connector import KVReport
from scheduler.output import RequestOutput, SchedulerOutput
from scheduler.request import FinishReason, Request, RequestStatus
from scheduler.state import EngineState


class RemoteLoads:
    """The loads of one engine."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    # --- admission --------------------------------------------------------------------------------------

    def take_up(self, request: Request) -> bool:
        """Make a request whose load is finished an ordinary waiting one; False while it is under way.

        vLLM: `_update_waiting_for_remote_kv`.
        """
        if request.request_id not in self.state.received_loads:
            return False
        self.state.received_loads.discard(request.request_id)
        self._count_as_computed(request)
        preempted = request.num_preemptions > 0
        request.move_to(RequestStatus.PREEMPTED if preempted else RequestStatus.WAITING)
        return True

    def _count_as_computed(self, request: Request) -> None:
        kv_cache, exactly = self.state.kv_cache, self.state.rules.loads_count_exactly
        failed = request.request_id in self.state.failed_loads
        self.state.failed_loads.discard(request.request_id)
        if failed and request.num_computed_tokens == 0:
            kv_cache.free(request)
            return
        if not failed and not exactly:
            loaded = len(request.block_tables[0]) * kv_cache.block_sizes[0]
            request.num_computed_tokens = min(loaded, request.num_tokens)
        loaded = request.num_computed_tokens
        if loaded == request.num_tokens and (exactly or not failed):
            request.num_computed_tokens -= 1  # the last token is computed again, to sample from it
        if kv_cache.caching:
            kv_cache.enter(request, loaded if exactly else request.num_computed_tokens)

    # --- reports ----------------------------------------------------------------------------------------

    def take_report(self, report: KVReport) -> None:
        """Loads and sends that are done. Blocks of requests that ended meanwhile are released now."""
        requests = self.state.requests
        for request_id in report.received:
            request = requests.get(request_id)
            if request is None:
                continue
            if request.is_finished:
                self.state.release(request)
            else:
                self.state.received_loads.add(request_id)
        for request_id in report.sent:
            request = requests.get(request_id)
            if request is not None:
                self.state.release(request)

    def take_invalid_blocks(
        self, invalid: Collection[int], output: SchedulerOutput
    ) -> tuple[set[int], list[Request]]:
        """Blocks whose load failed, before the step's tokens are looked at.

        Returns the ids of requests whose tokens of this step are worthless, and with policy "fail" those that
        are to end for it, by `fail`, when the other outputs of the step have been applied.
        """
        state = self.state
        loading = [r for r in state.waiting if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS]
        fail = state.config.kv_load_failure_policy == "fail"
        scheduled = dict(zip(output.requests, output.num_scheduled_tokens, strict=True))
        broken_loads, _ = self._shorten(loading, invalid, scheduled)
        broken_running, bad_blocks = self._shorten(state.running, invalid, scheduled)
        if not fail:
            self.state.failed_loads.update(request.request_id for request in broken_loads)
            return {request.request_id for request in broken_running}, []
        for block in set(bad_blocks):  # in a set's order, which KV events show
            state.kv_cache.pool.forget(block)
        broken = sorted([*broken_loads, *broken_running], key=lambda request: request.request_id)
        return {request.request_id for request in broken}, broken

    def fail(self, broken: list[Request]) -> list[RequestOutput]:
        """End requests that have bad blocks, one after another; returns their entries."""
        for request in broken:
            self.state.finish([request], RequestStatus.FINISHED_ERROR)
        return [(request, 0, FinishReason.ERROR) for request in broken]

    def _shorten(
        self, requests: Iterable[Request], invalid: Collection[int], scheduled: Mapping[Request, int]
    ) -> tuple[list[Request], list[int]]:
        """Let the requests fall back to what they have without the bad blocks.

        The first holder of a bad block falls to that block and will compute it again; a later sharer keeps
        the block and falls to what it had before. In early releases that is its count of cached tokens: a
        request that never ran has -1 of them, and is then scheduled from there. Also returns the blocks from
        each first bad one on.
        """
        size = self.state.kv_cache.block_sizes[0]
        marked: set[int] = set()
        broken, bad_blocks = [], []
        for request in requests:
            table = request.block_tables[0] if request.block_tables else []
            examined = self._num_examined(request, scheduled)
            bad = [i for i, block in enumerate(table[: -(-examined // size)]) if block in invalid]
            if not bad:
                continue
            broken.append(request)
            first = next((i for i in bad if table[i] not in marked), None)
            if first is None:
                exactly = self.state.rules.loads_count_exactly
                request.num_computed_tokens = examined if exactly else request.num_cached_tokens
            else:
                request.num_computed_tokens = first * size
                request.num_external_tokens -= examined - first * size
                bad_blocks += table[first:]
            marked.update(table[i] for i in bad)
        return broken, bad_blocks

    def _num_examined(self, request: Request, scheduled: Mapping[Request, int]) -> int:
        """The leading tokens among which a bad block matters."""
        if self.state.rules.loads_count_exactly:
            return request.num_computed_tokens - scheduled.get(request, 0)
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            return request.num_cached_tokens
        if request.request_id in self.state.failed_loads:
            return request.num_computed_tokens
        return len(request.block_tables[0]) * self.state.kv_cache.block_sizes[0]
