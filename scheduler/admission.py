"""What stands between a waiting request and its first step: gates, and room.

A gate passes a request over for now, and those behind it are looked at. Room is what must be free beyond the
blocks of the first step.
"""

from __future__ import annotations

from scheduler.kv_cache.interface import PrefixHits
from scheduler.output import SchedulerOutput
from scheduler.remote_loads import RemoteLoads
from scheduler.request import PREEMPTED, WAITING, Request, RequestStatus
from scheduler.speculation import Drafter
from scheduler.state import EngineState


class AdmissionGates:
    """The gates of one engine, all in one place and in vLLM's order."""

    def __init__(self, state: EngineState, remote_loads: RemoteLoads) -> None:
        self.state = state
        self.ready_grammars: set[int] = set()
        """Ids of requests whose grammar is compiled and that have not been looked at since."""
        self._remote_loads = remote_loads
        self._max_loras = state.config.max_loras
        self._output: SchedulerOutput | None = None
        self._adapters: set[str] = set()
        self._num_seen = 0

    def hold_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True if the request at the head of the line must be passed over. `output` is the step so far.

        vLLM: the checks between `peek_request` and the prefix lookup, each of which moves the request to the
        skipped ones. A request whose load or grammar has come becomes an ordinary waiting one here.
        """
        status = request.status
        if status is WAITING or status is PREEMPTED:
            pass
        elif status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            if not self._remote_loads.take_up(request):
                return True
        elif status is RequestStatus.WAITING_FOR_FSM:
            if request.request_id not in self.ready_grammars:
                return True
            self.ready_grammars.discard(request.request_id)
            request.move_to(RequestStatus.WAITING)
        elif status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            return True
        if request.num_stale_tokens > 0 and not request.drop_stale_output:
            return True  # its output from before a preemption must arrive first
        return request.lora_name is not None and self._lacks_adapter_slot(request.lora_name, output)

    def _lacks_adapter_slot(self, name: str, output: SchedulerOutput) -> bool:
        """Whether the adapter would be one too many (vLLM: `max_loras`, `scheduled_loras`).

        The adapters of a step are those of everything scheduled in it so far or, as the release has it, of
        all running requests.
        """
        if self._max_loras is None:
            return False
        if output is not self._output:
            self._output, self._adapters, self._num_seen = output, set(), 0
            if self.state.rules.all_running_adapters_count:
                self._adapters = {r.lora_name for r in self.state.running if r.lora_name is not None}
        for scheduled in output.requests[self._num_seen :]:
            if scheduled.lora_name is not None:
                self._adapters.add(scheduled.lora_name)
        self._num_seen = len(output.requests)
        return len(self._adapters) == self._max_loras and name not in self._adapters


class AdmissionRoom:
    """What must be free before a waiting request is admitted, beyond the blocks of its first step.

    The first release asks for nothing more. Later ones want room for the whole prompt, leave a watermark free
    beside running requests, and do not start asynchronous loads into blocks that prefills under way will
    need. Further checks of room go here; what holds back a single request is a gate (`AdmissionGates`).
    """

    def __init__(self, state: EngineState, drafter: Drafter) -> None:
        config = state.config
        self.state = state
        self.drafter = drafter
        self._num_batched_tokens = config.max_num_batched_tokens * config.batches_in_flight(state.rules)
        self._watermark_blocks = int(config.watermark * state.kv_cache.num_blocks)
        self._reserve_full_prompt = bool(config.reserve_full_prompt)

    def keep_free(
        self, request: Request, hits: PrefixHits, num_external_tokens: int, *, loading: bool
    ) -> int | None:
        """Blocks that the request's first step must leave free; None if it must not be admitted now."""
        watermark = self._watermark_blocks if self.state.running else 0
        if self._reserve_full_prompt:
            needed = self._needed(request, self._prompt_tokens(request), hits, num_external_tokens)
            if needed + watermark > self.state.kv_cache.num_free_blocks:
                return None
        if loading and self.state.rules.loads_leave_room_for_prefills:
            return watermark + self._reserved_for_prefills()
        return watermark

    def num_wanted(self, request: Request, num_step_blocks: int, hits: PrefixHits) -> int:
        """Free blocks without which the request is not admitted; its first step takes `num_step_blocks`."""
        wanted = num_step_blocks
        if self._reserve_full_prompt:
            wanted = max(wanted, self._needed(request, request.num_tokens, hits))
        return wanted + (self._watermark_blocks if self.state.running else 0)

    def _reserved_for_prefills(self) -> int:
        """What prefills under way still need, and one step of drafting."""
        drafter = self.drafter
        ahead = 1 + drafter.num_drafts + drafter.lookahead_slots if drafter.num_drafts else 0
        reserved = 0
        for request in self.state.prefills_under_way.values():
            reserved += self._needed(request, self._prompt_tokens(request) + ahead, None)
        if ahead:
            reserved += sum(-(-ahead // block_size) for block_size in self.state.kv_cache.block_sizes)
        return reserved

    def _prompt_tokens(self, request: Request) -> int:
        return min(request.num_tokens, self.state.config.max_model_len)

    def _needed(
        self, request: Request, num_tokens: int, hits: PrefixHits | None, num_external_tokens: int = 0
    ) -> int:
        return self.state.kv_cache.num_blocks_for(
            request, num_tokens, hits, self._num_batched_tokens, num_external_tokens
        )
