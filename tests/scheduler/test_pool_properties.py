"""Whatever is done to the block pool, it agrees with a pool that is nothing but two lists."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.kv_cache.pool import BlockPool

NUM_BLOCKS = 12


class PoolAgainstLists(RuleBasedStateMachine):
    """The model: a list of free blocks, a list of (block, key) in order of entering, and who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, 1)
        self.free = list(range(1, NUM_BLOCKS))
        self.entered: list[tuple[int, int]] = []
        self.holds: list[list[int]] = []

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        if count <= len(self.free):
            taken, self.free = self.free[:count], self.free[count:]
            self.entered = [(block, key) for block, key in self.entered if block not in taken]
            assert self.pool.take(count) == taken
            self.holds.append(taken)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), key=st.integers(0, 5))
    def enter(self, data: st.DataObject, key: int) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.holds))))
        if block not in [entered for entered, _ in self.entered]:
            self.pool.enter(block, key, 0)
            self.entered.append((block, key))

    @rule(key=st.integers(0, 5))
    def hit(self, key: int) -> None:
        expected = next((block for block, entered in self.entered if entered == key), 0)
        assert self.pool.find(key, 0) == expected
        if expected:
            self.pool.touch([expected])
            self.holds.append([expected])
            self.free = [block for block in self.free if block != expected]

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        self.pool.release(reversed(blocks))
        held = [block for hold in self.holds for block in hold]
        self.free += [block for block in reversed(blocks) if block not in held]

    @precondition(lambda self: not self.holds)
    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.entered = []

    @invariant()
    def same_queue_counts_and_keys(self) -> None:
        assert list(self.pool.free_queue) == self.free
        assert self.pool.num_free == len(self.free)
        held = [block for hold in self.holds for block in hold]
        assert self.pool.ref_counts == [held.count(block) for block in range(NUM_BLOCKS)]
        assert sorted(self.pool.cached_blocks()) == sorted(block for block, _ in self.entered)
        assert self.pool.num_cached_free == sum(block in self.free for block, _ in self.entered)


PoolAgainstLists.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestPoolAgainstLists = PoolAgainstLists.TestCase
