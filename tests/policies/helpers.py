"""Policies on stage: a running list written out as a table, and whole runs that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler import EngineCore, KVCacheConfig, Request, SchedulerConfig
from scheduler.invariants import check, check_step
from scheduler.kv_cache.pool import BlockPool
from scheduler.policies import RunningView, VictimPolicy, VictimView

TAIL = 1_000_000


def actor(
    request_id: int,
    *,
    computed: int = 0,
    generated: int = 0,
    blocks: Sequence[int] = (),
    expected: float | None = None,
    **fields: float,
) -> Request:
    """A running request as a policy would find it."""
    request = Request(request_id, ((TAIL * (request_id + 1), 8),), 100, expected_output_tokens=expected)
    request.num_computed_tokens = computed
    request.num_output_tokens = generated
    request.block_tables = [list(blocks)]
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def choose(policy: VictimPolicy, running: Sequence[Request], needy: int = -1) -> int:
    """Whom the policy picks, by id; blocks in several tables are shared."""
    pool = BlockPool(100, 1)
    for request in running:
        for block in request.block_tables[0]:
            pool.ref_counts[block] += 1
    index = policy.choose(RunningView(running, pool), VictimView(running[needy], pool))
    return running[index].request_id


def play(
    requests: Sequence[Request],
    lengths: Mapping[int, int],
    *,
    arrivals: Mapping[int, int] | None = None,
    num_blocks: int = 40,
    max_steps: int = 5000,
    caching: bool = True,
    engine: EngineCore | None = None,
    policy: str = "fcfs",
    **knobs: object,
) -> list[list[tuple[int, int]]]:
    """Run requests to the end, laws checked at every step; returns (request id, scheduled tokens) by step.

    `lengths`: the true output length of each request, which only the pretended model knows. `arrivals`: the
    step at which a request is added, 0 for those not named. Two requests' outputs never share a prefix.
    """
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 512, "policy": policy}
    if engine is None:
        config = SchedulerConfig(**{k: knobs.pop(k, v) for k, v in limits.items()}, **_taken(knobs))
        engine = EngineCore(config, KVCacheConfig(num_blocks, enable_caching=caching), **knobs)
    pending = sorted(requests, key=lambda r: ((arrivals or {}).get(r.request_id, 0), r.request_id))
    story = []
    for now in range(max_steps):
        while pending and (arrivals or {}).get(pending[0].request_id, 0) <= now:
            engine.add_request(pending.pop(0))
        if not pending and not engine.has_unfinished_requests():
            return story
        output = engine.schedule()
        check_step(engine, output)
        story.append(
            [(r.request_id, n) for r, n in zip(output.requests, output.num_scheduled_tokens, strict=True)]
        )
        sampled = []
        for request, samples in zip(output.requests, output.samples, strict=True):
            ends = request.num_output_tokens + 1 >= lengths[request.request_id]
            token = 2 if ends else TAIL * (request.request_id + 1) + 500_000 + request.num_output_tokens
            sampled.append([token] if samples else [])
        engine.update(output, lambda _, sampled=sampled: sampled)
        check(engine)
    raise AssertionError(f"still at work after {max_steps} steps")


def _taken(knobs: dict[str, object]) -> dict[str, object]:
    names = ("long_prefill_token_threshold", "enable_chunked_prefill", "async_scheduling")
    return {name: knobs.pop(name) for name in names if name in knobs}


def fresh(
    prompts: Sequence[int],
    *,
    priorities: Sequence[int] | None = None,
    clients: Sequence[int] | None = None,
    guesses: Sequence[float | None] | None = None,
    max_tokens: int = 400,
) -> list[Request]:
    """Requests 0, 1, 2 … with prompts of these lengths that share nothing."""
    return [
        Request(
            i,
            ((TAIL * (i + 1), tokens),),
            max_tokens,
            arrival_time=float(i),
            priority=priorities[i] if priorities else 0,
            client_index=clients[i] if clients else 0,
            expected_output_tokens=guesses[i] if guesses else None,
        )
        for i, tokens in enumerate(prompts)
    ]
