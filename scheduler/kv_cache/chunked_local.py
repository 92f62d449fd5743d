"""Chunked-local attention: a token sees only its own chunk, so blocks of earlier chunks become null
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.kv_cache.interface import NULL_BLOCK
from scheduler.kv_cache.manager import append_column, shorten
from scheduler.kv_cache.sliding import WindowManager
from scheduler.request import Request


class ChunkedLocalManager(WindowManager):
    """Local attention within chunks of `spec.chunk` tokens."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Everything before the chunk of the next token."""
        return num_computed_tokens // self.spec.chunk * self.spec.chunk

    def longest_hit(
        self, keys: Sequence[int], max_tokens: int, groups: Sequence[int], drop_last: bool, alignment: int
    ) -> list[list[int]]:
        """Null blocks up to the chunk of the last token looked up, then a run of hits."""
        limit = min(max_tokens // self.block_size, len(keys))
        first = self.num_skipped_tokens(max_tokens) // self.block_size
        hits = [[NULL_BLOCK] * min(first, limit) for _ in groups]
        for i in range(first, limit):
            found = self.find_in(keys[i], groups)
            if found is None:
                break
            append_column(hits, found)
        if drop_last:
            shorten(hits, len(hits[0]) - 1)
        self.align(hits, alignment)
        return hits

    def most_blocks(self, num_batched_tokens: int, max_model_len: int) -> int:
        """A chunk and a step."""
        return -(-min(self.spec.chunk + num_batched_tokens, max_model_len) // self.block_size)

    def quiet_until(self, request: Request, num_computed_tokens: int) -> int:
        """Ends too where the next chunk begins."""
        next_chunk = self.num_skipped_tokens(num_computed_tokens) + self.spec.chunk
        return min(super().quiet_until(request, num_computed_tokens), next_chunk)
