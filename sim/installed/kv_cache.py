"""The installed engine's KV blocks as the recorder wants them counted.

vLLM keeps no count of free blocks that can still be hit, nor of evictions. Both follow from three moments of
its block pool: a block is taken from the free queue by a hit, one is given back, one loses its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from scheduler.kv_cache.interface import FreeBlocks, KVCache, PrefixHits
from scheduler.kv_events import KVEventLog
from scheduler.request import Request


class _FreeQueue:
    """vLLM's free queue as of now, from head to tail."""

    def __init__(self, pool: Any) -> None:
        self.size = int(pool.get_num_free_blocks())
        self._pool = pool

    def __iter__(self) -> Iterator[int]:
        return iter([block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()])


class CountedPool:
    """vLLM's block pool, and what is counted beside it. It puts its own functions before three of the
    pool's.
    """

    def __init__(self, pool: Any) -> None:
        self.num_blocks = int(pool.num_gpu_blocks)
        self.num_cached_free = 0
        self.num_evictions = 0
        self.num_freed = 0
        self._pool = pool
        pool.touch = self._before_touch(pool.touch)
        pool.free_blocks = self._around_free(pool.free_blocks)
        pool._maybe_evict_cached_block = self._around_evict(pool._maybe_evict_cached_block)  # noqa: SLF001

    @property
    def free_queue(self) -> FreeBlocks:
        """The blocks without a holder."""
        return _FreeQueue(self._pool)

    @property
    def ref_counts(self) -> Sequence[int]:
        """Holders of each block."""
        return [0 if block.is_null else block.ref_cnt for block in self._pool.blocks]

    @property
    def key_of_block(self) -> Sequence[int | None]:
        """A number for each block that can be hit."""
        return [None if block.block_hash is None else block.block_id for block in self._pool.blocks]

    def cached_blocks(self) -> Iterator[int]:
        """Every block that can be hit."""
        return iter([block.block_id for block in self._pool.blocks if block.block_hash is not None])

    def unshared(self, tables: Iterable[Iterable[int]]) -> list[int]:
        """Those of the blocks that have a single holder."""
        blocks = self._pool.blocks
        return [i for table in tables for i in table if blocks[i].ref_cnt == 1 and not blocks[i].is_null]

    def unshared_blocks(self, request: Request) -> list[int]:
        """Blocks that this request alone holds."""
        return self.unshared(request.block_tables)

    def cached_keys(self) -> Iterator[int]:
        """As `cached_blocks`."""
        return self.cached_blocks()

    def forget(self, block: int) -> None:
        """vLLM alone changes its cache."""
        raise _not_asked()

    def forget_all(self) -> None:
        """vLLM alone changes its cache."""
        raise _not_asked()

    def _before_touch(self, touch: Callable[..., Any]) -> Callable[..., Any]:
        def counted(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            listed = list(blocks)
            flat = [b for each in listed for b in (each if isinstance(each, list | tuple) else [each])]
            self.num_cached_free -= sum(_is_free_and_cached(block) for block in flat)
            return touch(listed, *args, **kwargs)

        return counted

    def _around_free(self, free: Callable[..., Any]) -> Callable[..., Any]:
        def counted(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            listed = list(blocks)
            found = free(listed, *args, **kwargs)
            freed = [block for block in listed if block.ref_cnt == 0 and not block.is_null]
            self.num_freed += len(freed)
            self.num_cached_free += sum(block.block_hash is not None for block in freed)
            return found

        return counted

    def _around_evict(self, evict: Callable[..., Any]) -> Callable[..., Any]:
        def counted(block: Any) -> Any:
            was_free = _is_free_and_cached(block)
            found = evict(block)
            if found:
                self.num_evictions += 1
                self.num_cached_free -= was_free
            return found

        return counted


def _is_free_and_cached(block: Any) -> bool:
    return block.ref_cnt == 0 and block.block_hash is not None and not block.is_null


def _not_asked() -> RuntimeError:
    return RuntimeError("the installed engine answers this itself")


class InstalledKVCache(KVCache):
    """The counts of the installed engine's KV cache. Decisions are vLLM's: nothing else may be asked."""

    def __init__(self, pool: CountedPool, caching: bool, block_sizes: list[int]) -> None:
        self.pool = pool
        self.caching = caching
        self.block_sizes = block_sizes
        self.holders = {}

    def tell_events(self, log: KVEventLog) -> None:
        """Not asked."""
        self._refuse()

    def no_hits(self) -> PrefixHits:
        """Not asked."""
        self._refuse()

    def find_hits(self, request: Request) -> PrefixHits:
        """Not asked."""
        self._refuse()

    def end_step(self) -> None:
        """Not asked."""
        self._refuse()

    def begin_step(self) -> None:
        """Not asked."""
        self._refuse()

    def cut_at_state_boundary(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """Not asked."""
        self._refuse()

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
        """Not asked."""
        self._refuse()

    def grow(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> bool:
        """Not asked."""
        self._refuse()

    def num_blocks_for(
        self,
        request: Request,
        num_tokens: int,
        hits: PrefixHits | None,
        num_batched_tokens: int,
        num_external_tokens: int = 0,
    ) -> int:
        """Not asked."""
        self._refuse()

    def drop_out_of_sight(self, request: Request) -> None:
        """Not asked."""
        self._refuse()

    def enter(self, request: Request, num_tokens: int) -> None:
        """Not asked."""
        self._refuse()

    def free(self, request: Request) -> None:
        """Not asked."""
        self._refuse()

    def num_hashed_tokens(self, request: Request) -> int:
        """Not asked."""
        self._refuse()

    def num_common_prefix_blocks(self, request: Request) -> list[int]:
        """Not asked."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise _not_asked()
