"""Equal text computed twice at once: each copy is cached, the first entered is hit, and then the next one.

Every story is told to the cache of runs and to the cache of single blocks, which must agree at every turn.
"""

from __future__ import annotations

from itertools import permutations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.release import release
from scheduler.speculation import Drafter
from tests.scheduler.both_caches import SIZE, BothCaches, Pair

TEXT = (1000, 6 * SIZE)
"""Six full blocks, as one range of token ids."""


def copies(caches: BothCaches, count: int, *, chunk: int = 1000) -> list[Pair]:
    """Requests that compute the same text in the same step: none is looked up once another has entered."""
    pairs = [caches.request([TEXT, (5000 + 1000 * i, 3)]) for i in range(count)]
    for pair in pairs:
        assert caches.admit(pair, chunk, look=False) == 0
        caches.compare()
    return pairs


def fill(caches: BothCaches, num_blocks: int) -> Pair:
    """Somebody else takes so many blocks from the head of the free queue."""
    pair = caches.request([(90_000 + 1000 * caches.num_requests, num_blocks * SIZE)])
    assert caches.admit(pair, look=False) == 0
    caches.compare()
    return pair


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whoever_frees_first_the_earliest_entered_copy_is_hit(order: tuple[int, ...]) -> None:
    caches = BothCaches(40)
    pairs = copies(caches, 3)
    first = pairs[0][0].block_tables[0][:6]
    for i in order:
        caches.free(pairs[i])
        caches.compare()
        assert caches.hit_blocks([TEXT, (7000, 1)]) == first


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_when_a_copy_is_evicted_the_next_one_is_hit(order: tuple[int, ...]) -> None:
    """Nineteen blocks, all free and in the order of freeing: whoever takes them evicts copy after copy."""
    caches = BothCaches(3 * 7 + 1)
    pairs = copies(caches, 3)
    tables = [pair[0].block_tables[0][:6] for pair in pairs]
    for i in order:
        caches.free(pairs[i])
    alive = [0, 1, 2]
    for i in order[:2]:
        fill(caches, 7)
        alive.remove(i)
        assert caches.hit_blocks([TEXT, (7000, 1)]) == tables[alive[0]]
    fill(caches, 7)
    assert caches.hit_blocks([TEXT, (7000, 1)]) == []


def test_a_text_half_evicted_is_hit_in_two_copies() -> None:
    """Blocks are handed out from the tail of what was freed: of the first copy the leading ones remain."""
    caches = BothCaches(2 * 7 + 1)
    one, two = copies(caches, 2)
    tables = [pair[0].block_tables[0][:6] for pair in (one, two)]
    caches.free(one)
    caches.free(two)
    fill(caches, 3)  # the block that is not full, and the last two full ones
    assert caches.hit_blocks([TEXT, (7000, 1)]) == tables[0][:4] + tables[1][4:]
    pair = caches.request([TEXT, (7000, 1)])
    assert caches.admit(pair) == 6 * SIZE
    caches.compare()
    caches.free(pair)
    caches.compare()


def test_a_later_copy_can_have_several_holders() -> None:
    caches = BothCaches(40)
    one, two = copies(caches, 2)
    caches.free(one)
    fill(caches, 39 - 7)  # everything that is free, the first copy included
    caches.free(caches.active[-1])
    sharers = [caches.request([TEXT, (7000 + 1000 * i, 2)]) for i in range(2)]
    for pair in sharers:
        assert caches.admit(pair) == 6 * SIZE
        assert pair[0].block_tables[0][:6] == two[0].block_tables[0][:6]
        caches.compare()
    for pair in (two, *sharers):
        caches.free(pair)
        caches.compare()
    assert len(caches.hit_blocks([TEXT, (9000, 1)])) == 6


def test_requests_that_go_on_alike_enter_their_blocks_in_turn() -> None:
    """Both compute the same prompt in chunks, then the same answer: the first to fill a block is hit."""
    caches = BothCaches(60)
    prompt = [(1000, 11 * SIZE)]
    one, two = caches.request(prompt), caches.request(prompt)
    for pair in (one, two):
        caches.admit(pair, 7, look=False)
    for turn in range(30):
        for pair in (one, two) if turn % 3 else (two, one):
            assert caches.grow(pair, 7)
            caches.compare()
    expected = caches.hit_blocks([(1000, 16 * SIZE)])
    assert set(expected) <= {*one[0].block_tables[0], *two[0].block_tables[0]}
    assert not set(expected) <= {*one[0].block_tables[0]}, "each was first at some blocks"
    caches.free(one)
    caches.compare()
    caches.free(two)
    caches.compare()


def test_a_copy_that_loses_a_block_gives_way_to_the_other_there() -> None:
    caches = BothCaches(40)
    one, two = copies(caches, 2)
    tables = [pair[0].block_tables[0][:6] for pair in (one, two)]
    caches.forget(tables[0][2])
    caches.compare()
    assert caches.hit_blocks([TEXT, (7000, 1)]) == [*tables[0][:2], tables[1][2], *tables[0][3:]]
    caches.forget(tables[1][2])
    caches.compare()
    assert caches.hit_blocks([TEXT, (7000, 1)]) == tables[0][:2]
    for pair in (two, one):
        caches.free(pair)
        caches.compare()


def test_a_prompt_that_ends_with_a_block_computes_that_block_again() -> None:
    """The last token is never hit, so every request with this prompt enters its own last block."""
    caches = BothCaches(40)
    pairs = [caches.request([TEXT]) for _ in range(4)]
    assert [caches.admit(pair) for pair in pairs] == [0, 5 * SIZE, 5 * SIZE, 5 * SIZE]
    caches.compare()
    lasts = [pair[0].block_tables[0][5] for pair in pairs]
    assert len(set(lasts)) == 4
    for pair in (pairs[2], pairs[0]):
        caches.free(pair)
        caches.compare()
    assert caches.hit_blocks([TEXT, (7000, 1)])[5] == lasts[0]
    caches.forget(lasts[0])
    assert caches.hit_blocks([TEXT, (7000, 1)])[5] == lasts[1]


class EqualTexts(RuleBasedStateMachine):
    """Three texts with a common start, few blocks, and lookups that are often left out."""

    def __init__(self) -> None:
        super().__init__()
        self.caches = BothCaches(30)

    @precondition(lambda self: not self.caches.num_requests)
    @rule(version=st.sampled_from(["0.16.0", "0.33.0"]), drops=st.booleans(), num_blocks=st.integers(8, 40))
    def choose(self, version: str, drops: bool, num_blocks: int) -> None:
        self.caches = BothCaches(
            num_blocks, rules=release(version).rules, drafter=Drafter(drops_last_hit=drops)
        )

    @rule(
        start=st.integers(1, 24),
        end=st.none() | st.tuples(st.sampled_from([2000, 3000]), st.integers(1, 10)),
        chunk=st.integers(1, 30),
        look=st.booleans(),
    )
    def admit(self, start: int, end: tuple[int, int] | None, chunk: int, look: bool) -> None:
        prompt = [(1000, start), end] if end else [(1000, start)]
        self.caches.admit(self.caches.request(prompt), chunk, look=look)

    @precondition(lambda self: self.caches.active)
    @rule(data=st.data(), chunk=st.integers(1, 9), goes_on=st.booleans())
    def grow(self, data: st.DataObject, chunk: int, goes_on: bool) -> None:
        pair = data.draw(st.sampled_from(self.caches.active))
        if not self.caches.grow(pair, chunk, following=None if goes_on else 1000):
            self.caches.free(pair)

    @precondition(lambda self: self.caches.active)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.caches.free(data.draw(st.sampled_from(self.caches.active)))

    @precondition(lambda self: self.caches.active)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.caches.active))[0].block_tables[0]
        self.caches.forget(data.draw(st.sampled_from(table)))

    @invariant()
    def alike(self) -> None:
        self.caches.compare()


EqualTexts.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEqualTexts = EqualTexts.TestCase
