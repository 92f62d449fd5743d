"""Room: what must be free before a waiting request is admitted, beyond the blocks of its first step.

The first release asks for nothing more. Later ones want room for the whole prompt, leave a watermark free
beside running requests, and do not start asynchronous loads into blocks that prefills under way will need.
"""

from __future__ import annotations

from scheduler.kv_cache.interface import PrefixHits
from scheduler.request import Request
from scheduler.speculation import Drafter
from scheduler.state import EngineState


class AdmissionRoom:
    """The room checks of one engine. This is the one place to hook in further ones."""

    def __init__(self, state: EngineState, drafter: Drafter) -> None:
        config = state.config
        self.state = state
        self.drafter = drafter
        self._num_batched_tokens = config.max_num_batched_tokens * (2 if config.async_scheduling else 1)
        self._watermark_blocks = int(config.watermark * state.kv_cache.num_blocks)
        self._reserve_full_prompt = bool(config.reserve_full_prompt)

    def keep_free(self, request: Request, hits: PrefixHits, *, loading: bool) -> int | None:
        """Blocks that the request's first step must leave free; None if it must not be admitted now."""
        watermark = self._watermark_blocks if self.state.running else 0
        if self._reserve_full_prompt:
            needed = self._needed(request, self._prompt_tokens(request), hits)
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

    def _needed(self, request: Request, num_tokens: int, hits: PrefixHits | None) -> int:
        return self.state.kv_cache.num_blocks_for(request, num_tokens, hits, self._num_batched_tokens)
