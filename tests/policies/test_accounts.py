"""What preemptions cost, request by request, against sums done by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import EngineCore, KVCacheConfig, SchedulerConfig
from scheduler.state import PreemptionAccounts
from tests.policies.helpers import actor, fresh, play


def step(engine: EngineCore, token: int = 5) -> None:
    output = engine.schedule()
    engine.update(output, lambda _: [[token] if samples else [] for samples in output.samples])


def test_a_victim_that_comes_back_finds_the_blocks_that_nobody_took() -> None:
    """Seven blocks: request 0 takes three, request 1 three; then 0 takes the last and 1 has to go.

    Request 1 has 48 computed tokens in three full blocks of its own. While it is away request 0 takes no
    further block, so its blocks stay cached; its 49 tokens come back with a hit of three blocks and one token
    to compute.
    """
    engine = EngineCore(SchedulerConfig(max_num_batched_tokens=96), KVCacheConfig(8))
    first, second = fresh([48, 48])
    engine.add_request(first)
    engine.add_request(second)
    step(engine)
    step(engine)
    assert engine.running == [first]
    account = engine.preemption_accounts.by_request[1]
    assert (account.num_preemptions, account.num_lost_tokens, account.num_freed_blocks) == (1, 48, 3)
    engine.abort_requests([0])
    step(engine)
    assert engine.running == [second]
    assert (account.num_rehit_blocks, account.num_reloaded_tokens) == (3, 0)
    assert second.num_recomputed_tokens == 0
    assert engine.prefix_cache_stats.preempted_hits == 48


def test_without_prefix_caching_nothing_is_found_and_all_is_computed_again() -> None:
    engine = EngineCore(SchedulerConfig(max_num_batched_tokens=96), KVCacheConfig(8, enable_caching=False))
    first, second = fresh([48, 48])
    engine.add_request(first)
    engine.add_request(second)
    step(engine)
    step(engine)
    engine.abort_requests([0])
    step(engine)
    account = engine.preemption_accounts.by_request[1]
    assert (account.num_freed_blocks, account.num_rehit_blocks) == (3, 0)
    assert second.num_recomputed_tokens == 48


def test_shared_blocks_do_not_become_free() -> None:
    """Twins share the two blocks of their prompt; the second to arrive owns one block besides."""
    engine = EngineCore(SchedulerConfig(max_num_batched_tokens=96), KVCacheConfig(6))
    first, second = fresh([40, 40])
    second.tokens = first.tokens
    for request in (first, second):
        engine.add_request(request)
    for _ in range(30):
        step(engine)
        if engine.num_preemptions:
            break
    account = engine.preemption_accounts.by_request[1]
    assert account.num_freed_blocks == len({*range(1, 6)}) - 2 - 2, (
        "five blocks: two shared, two of the first"
    )


def test_a_chain_is_preempted_again_and_again_without_a_token_in_between() -> None:
    accounts = PreemptionAccounts()
    request = actor(0, computed=30, generated=4)
    for generated in (4, 4, 4, 5, 5):
        request.num_output_tokens = generated
        accounts.preempted(request, [1, 2])
    account = accounts.by_request[0]
    assert (account.num_preemptions, account.longest_chain, account.num_freed_blocks) == (5, 3, 10)


@settings(max_examples=60)
@given(
    work=st.lists(
        st.tuples(st.integers(1, 140), st.integers(1, 60), st.integers(0, 20)), min_size=2, max_size=8
    ),
    caching=st.booleans(),
)
def test_the_accounts_of_any_run_add_up(work: list[tuple[int, int, int]], caching: bool) -> None:
    """Each request fits alone: 200 tokens in 13 blocks of 16."""
    engine = EngineCore(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512),
        KVCacheConfig(14, enable_caching=caching),
    )
    requests = fresh([w[0] for w in work])
    play(
        requests,
        {i: w[1] for i, w in enumerate(work)},
        arrivals={i: w[2] for i, w in enumerate(work)},
        engine=engine,
    )
    accounts = engine.preemption_accounts.by_request
    assert sum(a.num_preemptions for a in accounts.values()) == engine.num_preemptions
    stats = engine.prefix_cache_stats
    assert stats.saved_tokens <= stats.hits + stats.preempted_hits, "lookups are counted at every attempt"
    for request in requests:
        account = accounts.get(request.request_id)
        if account is None:
            assert request.num_preemptions == request.num_recomputed_tokens == 0
            continue
        assert account.num_preemptions == request.num_preemptions
        assert account.num_rehit_blocks <= account.num_freed_blocks
        assert request.num_recomputed_tokens <= account.num_lost_tokens
        assert 1 <= account.longest_chain <= account.num_preemptions
        if not caching:
            assert account.num_rehit_blocks == 0
            assert request.num_recomputed_tokens == account.num_lost_tokens
