"""Where prefill chunks end in models with Mamba states in mode "align": where a state is to be kept."""

from __future__ import annotations

from scheduler.release import Rules
from scheduler.request import Request
from scheduler.speculation import Drafter


class StateChunks:
    """The cuts of one engine.

    States are kept at multiples of `block_size` tokens, the last where a hit on the text can end: with its
    last full block, one block before if the drafter has the last hit block computed again, or where hashes
    end that cover tokens ahead. No step gives a request more than `largest_chunk` tokens.
    """

    def __init__(self, block_size: int, rules: Rules, drafter: Drafter, largest_chunk: int) -> None:
        self._size = block_size
        self._dropped = block_size if drafter.drops_last_hit else 0
        self._unkept = 0 if drafter.drops_last_hit else max(drafter.hash_lookahead, 1)
        self._checkpoints = rules.checkpoint_states
        self._largest_chunk = largest_chunk

    def cut(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """The next tokens of the request, at most `num_tokens`; 0 if it must wait for a larger share."""
        if self._checkpoints:
            return self._cut_to_checkpoints(request, num_computed_tokens, num_tokens)
        if request.num_output_tokens:
            return num_tokens
        last = self._last_kept(request.num_prompt_tokens)
        if num_computed_tokens >= last:
            return num_tokens
        if num_computed_tokens + num_tokens >= last:
            return last - num_computed_tokens
        return num_tokens // self._size * self._size

    def _cut_to_checkpoints(self, request: Request, computed: int, num_tokens: int) -> int:
        """Every chunk but the last of a prefill ends at a block boundary; one that starts inside a block ends
        at the next, and a block that no chunk can cover is computed in parts.
        """
        if computed >= max(request.num_prompt_tokens, request.num_tokens - 1):
            return num_tokens
        size, end = self._size, computed + num_tokens
        last = self._last_kept(request.num_tokens - self._unkept)
        if computed < request.junction_tokens < min(end, last):
            return request.junction_tokens - computed
        if computed < last:
            end = min(end, last)
        if computed % size:
            end = min(end, computed - computed % size + size)
        if end >= request.num_tokens:
            return end - computed
        aligned = end // size * size
        if aligned > computed:
            return aligned - computed
        return end - computed if size > self._largest_chunk else 0

    def _last_kept(self, num_tokens: int) -> int:
        return max(num_tokens // self._size * self._size - self._dropped, 0)
