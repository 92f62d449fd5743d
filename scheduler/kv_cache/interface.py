"""What the scheduler asks of a KV cache, and what it gets back.

Two implementations stand side by side: `plain.PlainKVCache` for one group of full attention, which is what
most models have, and `grouped.GroupedKVCache` for everything else. Both make the same decisions, block for
block, where either could serve.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduler.kv_cache.hashes import BlockHasher
from scheduler.kv_events import KVEventLog
from scheduler.request import Request

NULL_BLOCK = 0
"""Stands in block tables for positions whose KV is not kept. Never handed out, counted or cached."""

NEVER = 1 << 62
"""A token count no request reaches."""


class PrefixHits:
    """Cached blocks a request can start from: one list per group, and the tokens they cover."""

    __slots__ = ("blocks", "num_tokens")

    def __init__(self, blocks: list[list[int]], num_tokens: int = 0) -> None:
        self.blocks = blocks
        self.num_tokens = num_tokens


class FreeBlocks(Protocol):
    """The free queue as seen from outside: block ids from head (next to be handed out) to tail."""

    size: int

    def __iter__(self) -> Iterator[int]: ...


class Pool(Protocol):
    """The blocks of a KV cache as seen from outside; `pool.BlockPool` and `runs.RunPool` show them."""

    num_blocks: int
    num_cached_free: int
    num_evictions: int
    num_freed: int

    @property
    def free_queue(self) -> FreeBlocks:
        """The blocks without a holder."""

    @property
    def ref_counts(self) -> Sequence[int]:
        """Holders of each block."""

    @property
    def key_of_block(self) -> Sequence[int | None]:
        """The key of each block, None where it cannot be hit."""

    def unshared_blocks(self, request: Request) -> list[int]:
        """Blocks that this request alone holds."""

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be hit."""

    def cached_keys(self) -> Iterator[int]:
        """Keys of cached blocks; of a chain of consecutive ones, at least one."""

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache; others with the same key stay."""

    def forget_all(self) -> None:
        """Empty the prefix cache. The order of the free queue does not change."""


class KVCache(ABC):
    """Block tables and prefix cache of one engine. Nothing is decided here: this says what can be asked.

    `pool` shows all blocks to those who look from outside. `caching` tells whether there is a prefix cache,
    `hasher` makes the keys of its blocks, `block_sizes` are those of the KV groups (tokens). `holders` are
    the requests that hold blocks, by id: running, waiting with blocks, or finished but not yet released.
    """

    pool: Pool
    caching: bool
    hasher: BlockHasher
    block_sizes: list[int]
    holders: dict[int, Request]

    # --- counts -----------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return self.pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a holder, cached ones included."""
        return self.pool.free_queue.size

    @property
    def num_used_blocks(self) -> int:
        """Blocks with at least one holder."""
        pool = self.pool
        return pool.num_blocks - 1 - pool.free_queue.size

    @property
    def num_cached_free_blocks(self) -> int:
        """Blocks without a holder that can still be hit."""
        return self.pool.num_cached_free

    @property
    def num_evictions(self) -> int:
        """Cached blocks handed out again so far."""
        return self.pool.num_evictions

    # --- lookup -----------------------------------------------------------------------------------------

    @abstractmethod
    def no_hits(self) -> PrefixHits:
        """What a request starts from that may not or need not look."""

    @abstractmethod
    def find_hits(self, request: Request) -> PrefixHits:
        """The longest cached prefix, never the whole text: the last token must be computed to sample the
        next.
        """

    # --- allocation -------------------------------------------------------------------------------------

    @abstractmethod
    def begin_step(self) -> None:
        """A new step is about to be planned."""

    @abstractmethod
    def end_step(self) -> None:
        """The step is planned."""

    @abstractmethod
    def cut_at_state_boundary(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """The next tokens of a prefill, at most `num_tokens`, that end where a Mamba state is wanted."""

    @abstractmethod
    def allocate(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_lookahead_tokens: int = 0,
        hits: PrefixHits | None = None,
        num_external_tokens: int = 0,
        enter_cache: bool = True,
        keep_free: int = 0,
    ) -> bool:
        """Give the request slots for its next tokens; False (and nothing taken) if there are too few free
        blocks.

        Slots cover computed, hit, external, new and lookahead tokens. Full blocks of known tokens are entered
        in the prefix cache at once unless `enter_cache` is off (loads still under way). Blocks that have
        fallen out of a window are given back first, even if the allocation then fails. So many blocks as
        `keep_free` says must remain free.
        """

    @abstractmethod
    def grow(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> bool:
        """`allocate` for a running request: it has tables and finds no hits."""

    @abstractmethod
    def num_blocks_for(
        self,
        request: Request,
        num_tokens: int,
        hits: PrefixHits | None,
        num_batched_tokens: int,
        num_external_tokens: int = 0,
    ) -> int:
        """Free blocks it takes for a request to have so many tokens, if steps compute up to
        `num_batched_tokens` of them: blocks that will have fallen out of a window by then are not needed, nor
        such as its hits or external tokens lie beyond.
        """

    @abstractmethod
    def drop_out_of_sight(self, request: Request) -> None:
        """Give back what no further step would attend to, as `allocate` does first."""

    # --- cache and end ----------------------------------------------------------------------------------

    @abstractmethod
    def enter(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the prefix cache of every group."""

    @abstractmethod
    def free(self, request: Request) -> None:
        """Release everything the request holds, group by group, the tail of each table first."""

    @abstractmethod
    def num_hashed_tokens(self, request: Request) -> int:
        """How far the request's blocks are in the prefix cache, over all groups (tokens)."""

    @abstractmethod
    def num_common_prefix_blocks(self, request: Request) -> list[int]:
        """Per group: leading blocks of this request that all holders share. Full attention only, else 0."""

    @abstractmethod
    def tell_events(self, log: KVEventLog) -> None:
        """From now on note in `log` what enters and leaves the prefix cache."""

    def reset(self) -> bool:
        """Empty the prefix cache; refused (False) while any block is in use."""
        if self.num_used_blocks:
            return False
        self.pool.forget_all()
        return True
