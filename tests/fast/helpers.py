"""Two engines side by side, one with a cohort and one without, in the same random world."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from scheduler import (
    EOS_TOKEN_ID,
    EngineCore,
    EngineCoreOutputs,
    KVCacheConfig,
    Request,
    SchedulerConfig,
    SchedulerOutput,
    SessionInput,
)
from scheduler.invariants import check
from scheduler.release import release

BLOCK_SIZE = 4


class Answers:
    """What the pretended model will say: consecutive ids from `start`, and one other token now and then."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}
        self.others: dict[int, dict[int, int]] = {}

    def sample(self, output: SchedulerOutput) -> list[list[int]]:
        sampled: list[list[int]] = []
        for request, samples in zip(output.requests, output.samples, strict=True):
            if not samples or request.is_finished:
                sampled.append([])
                continue
            number, request_id = request.num_output_tokens, request.request_id
            sampled.append([self.others[request_id].get(number, self.starts[request_id] + number)])
        return sampled

    def steady_tokens(self, request: Request) -> int:
        number, request_id = request.num_output_tokens, request.request_id
        if number - 1 in self.others[request_id]:
            return 0
        return min((n - number for n in self.others[request_id] if n >= number), default=1 << 40)


class Twins:
    """A plain engine and one with a cohort; everything is done to both, and must come out the same.

    `in_full`: the second names every request in its outputs.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheConfig,
        version: str = "0.16.0",
        *,
        in_full: bool = False,
    ) -> None:
        mirrored = release(version)
        self.empty_batches_queue = mirrored.rules.empty_batches_queue
        self.ahead = config.async_scheduling
        self.answers = Answers()
        self.plain = EngineCore(config, kv_cache, release=mirrored)
        self.in_full = in_full
        self.fast = EngineCore(
            config,
            kv_cache,
            release=mirrored,
            forecast=self.answers.steady_tokens,
            names_everybody=in_full,
        )
        self.in_flight: deque[tuple[SchedulerOutput, SchedulerOutput]] = deque()
        self.steps_with_members = 0
        self.spoken: set[int] = set()

    def add(self, start: int, others: dict[int, int], *args: Any, **kwargs: Any) -> None:
        request_id: int = args[0]
        self.answers.starts[request_id] = start
        self.answers.others[request_id] = others
        self.plain.add_request(Request(*args, **kwargs))
        self.fast.add_request(Request(*args, **kwargs))

    def abort(self, request_id: int) -> None:
        for engine in (self.plain, self.fast):
            engine.abort_requests([request_id])

    def submit_input(self, request_id: int, new_input: SessionInput | None) -> None:
        for engine in (self.plain, self.fast):
            engine.submit_input(request_id, new_input)

    def reset(self, *, preempt_running: bool) -> None:
        one, two = (
            engine.reset_prefix_cache(preempt_running=preempt_running) for engine in (self.plain, self.fast)
        )
        assert (one[0], ids(one[1])) == (two[0], ids(two[1]))

    def step(self, abort_mid: int | None = None, *, look: bool = False) -> bool:
        """One turn of the loop; False if nothing was left to do. `look`: compare every request."""
        assert self.plain.has_work() == self.fast.has_work()
        if self.plain.has_work():
            one, two = self.plain.schedule(), self.fast.schedule()
            self.steps_with_members += two.num_steady > 0
            compare_steps(one, two, in_full=self.in_full)
            self.in_flight.append((one, two))
            worth_it = one.total_num_scheduled_tokens > 0 or self.empty_batches_queue
            if self.ahead and worth_it and len(self.in_flight) < 2:
                return True
        elif not self.in_flight:
            return False
        if abort_mid is not None:
            self.abort(abort_mid)
        one, two = self.in_flight.popleft()
        outputs = self.plain.update(one, self.answers.sample)
        fast_outputs = self.fast.update(two, self.answers.sample)
        compare_entries(outputs, fast_outputs, in_full=self.in_full)
        self.compare_blocks()
        if look:
            self.compare_requests()
        return True

    def compare_blocks(self) -> None:
        one, two = self.plain.kv_cache, self.fast.kv_cache
        assert list(one.pool.free_queue) == list(two.pool.free_queue)
        assert one.num_cached_free_blocks == two.num_cached_free_blocks
        assert one.num_evictions == two.num_evictions
        assert self.plain.prefix_cache_stats == self.fast.prefix_cache_stats
        assert self.plain.num_preemptions == self.fast.num_preemptions

    def compare_requests(self) -> None:
        check(self.plain)
        check(self.fast)
        assert ids(self.plain.running) == ids(self.fast.running)
        assert ids(self.plain.waiting) == ids(self.fast.waiting)
        assert self.plain.kv_cache.pool.key_of_block == self.fast.kv_cache.pool.key_of_block
        assert self.plain.kv_cache.pool.ref_counts == self.fast.kv_cache.pool.ref_counts
        for request_id, request in self.plain.requests.items():
            assert state(request) == state(self.fast.requests[request_id])


def ids(requests: Any) -> list[int]:
    return [request.request_id for request in requests]


def state(request: Request) -> tuple[object, ...]:
    return (
        request.status,
        request.num_tokens,
        request.num_output_tokens,
        request.num_computed_tokens,
        request.num_output_placeholders,
        request.num_cached_tokens,
        request.num_preemptions,
        request.num_recomputed_tokens,
        request.block_tables,
        request.num_cached_blocks,
        request.tokens.shifts,
    )


def compare_steps(one: SchedulerOutput, two: SchedulerOutput, *, in_full: bool) -> None:
    assert one.total_num_scheduled_tokens == two.total_num_scheduled_tokens
    assert one.num_recomputed_tokens == two.num_recomputed_tokens
    assert one.finished_req_ids == two.finished_req_ids
    for name in ("new", "resumed", "preempted"):
        assert ids(getattr(one, name)) == ids(getattr(two, name))
    if in_full:
        assert ids(one.requests) == ids(two.requests)
        assert one.num_scheduled_tokens == two.num_scheduled_tokens
        assert one.num_computed_before == two.num_computed_before
        assert one.samples == two.samples
    else:
        members = two.num_steady
        assert len(one.requests) == len(two.requests) + members
        assert sum(one.num_computed_before) == sum(two.num_computed_before) + two.steady_computed_tokens
        if members:
            most = max([two.most_steady_computed_tokens, *two.num_computed_before])
            assert max(one.num_computed_before) == most


def compare_entries(one: EngineCoreOutputs, two: EngineCoreOutputs, *, in_full: bool) -> None:
    """Ends are told in the same order; whoever is not named by the cohort went on by one token, and is
    counted."""
    told = [(request.request_id, count, reason) for request, count, reason in two.entries]
    named = {entry[0] for entry in told}
    everybody = [(request.request_id, count, reason) for request, count, reason in one.entries]
    assert [entry for entry in everybody if entry[0] in named] == told
    unnamed = [entry for entry in everybody if entry[0] not in named]
    assert all(entry[1:] == (1, None) for entry in unnamed)
    assert len(unnamed) == two.num_unnamed
    assert not (in_full and unnamed)
    assert one.finished_by_client == two.finished_by_client


def random_request(random: Random, request_id: int, twins: Twins, *, sessions: bool) -> None:
    """Few texts, so that prompts share blocks with prompts and with answers."""
    prompt = [
        (1000 * random.randint(1, 2), random.randint(0, 20)),
        (1000 * random.randint(1, 3) + random.randint(0, 2) * BLOCK_SIZE, random.randint(0, 14)),
        (10_000 * (request_id + 2), random.choice([0, random.randint(1, 15)])),
    ]
    prompt = [piece for piece in prompt if piece[1]] or [(1000, 3)]
    goes_on = prompt[-1][0] + prompt[-1][1]
    start = random.choice([goes_on, goes_on, 1000, 500_000 + 1000 * request_id])
    resumable = sessions and random.random() < 0.5
    max_tokens = random.randint(1, 15 if resumable else 30)
    others = {}
    if random.random() < 0.5:
        others[random.randint(0, max_tokens)] = random.choice([EOS_TOKEN_ID, 77, 900_000 + request_id])
    twins.add(
        start,
        others,
        request_id,
        prompt,
        max_tokens,
        priority=random.randint(0, 2),
        arrival_time=random.random(),
        client_index=random.randint(0, 1),
        min_tokens=random.choice([0, 0, 5]),
        ignore_eos=random.random() < 0.3,
        stop_token_ids=random.choice([(), (77,), (start + 9,)]),
        cache_salt=random.choice([None, None, None, "salt"]),
        skip_reading_prefix_cache=random.random() < 0.1,
        resumable=resumable,
    )
