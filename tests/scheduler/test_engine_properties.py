"""Engines with random mixes of all features, driven at random: every law holds after every step, nothing
hangs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, example, given, settings

from scheduler import (
    EOS_TOKEN_ID,
    ExternalMatch,
    GroupKind,
    KVGroupSpec,
    KVReport,
    Request,
    SchedulerOutput,
    SessionInput,
    SpeculativeConfig,
)
from scheduler.invariants import check, check_step
from scheduler.release import release
from scheduler.standstill import examine
from tests.scheduler.helpers import make_engine

GROUPS = {
    "full": (KVGroupSpec(GroupKind.FULL, 4),),
    "sliding": (KVGroupSpec(GroupKind.SLIDING, 4, window=13),),
    "chunked": (KVGroupSpec(GroupKind.CHUNKED_LOCAL, 4, chunk=16),),
    "hybrid": (KVGroupSpec(GroupKind.FULL, 4), KVGroupSpec(GroupKind.SLIDING, 8, window=20)),
    "three": (
        KVGroupSpec(GroupKind.SLIDING, 4, window=9),
        KVGroupSpec(GroupKind.FULL, 4),
        KVGroupSpec(GroupKind.CHUNKED_LOCAL, 4, chunk=8),
    ),
    "mamba": (KVGroupSpec(GroupKind.FULL, 4), KVGroupSpec(GroupKind.MAMBA, 4, mamba_mode="align")),
}
LONGEST = 60
MAX_BLOCKS = 2 * LONGEST  # three groups of 4-token blocks hold one request of that length


@dataclass
class RandomConnector:
    """Loads and sends that take a few steps, and now and then a block that did not arrive."""

    random: Random
    loading: list[Request] = field(default_factory=list)
    sending: list[Request] = field(default_factory=list)

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        if self.random.random() < 0.2:
            return None
        num_tokens = max(0, self.random.randint(0, request.num_tokens - 1) - num_local_tokens)
        self.asynchronous = num_tokens > 0 and self.random.random() < 0.5
        return ExternalMatch(num_tokens, self.asynchronous)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        if num_external_tokens and self.asynchronous:
            self.loading.append(request)

    def delays_free(self, request: Request) -> bool:
        keep = request not in self.loading and self.random.random() < 0.3
        if keep:
            self.sending.append(request)
        return keep

    def report(self, always: bool) -> KVReport:
        done = [request for request in self.loading if always or self.random.random() < 0.4]
        sent = [request for request in self.sending if always or self.random.random() < 0.4]
        self.loading = [request for request in self.loading if request not in done]
        self.sending = [request for request in self.sending if request not in sent]
        bad = [
            request.block_tables[0][-1]
            for request in done
            if request.block_tables and self.random.random() < 0.2
        ]
        return KVReport([r.request_id for r in done], [r.request_id for r in sent], sorted(set(bad)))


class Drive:
    """One engine and the random world around it."""

    def __init__(self, random: Random, knobs: dict[str, Any], features: set[str]) -> None:
        self.random = random
        self.features = features
        self.connector = RandomConnector(random) if "connector" in features else None
        self.engine = make_engine(connector=self.connector, **knobs)
        self.ahead = knobs["async_scheduling"]
        self.in_flight: deque[SchedulerOutput] = deque()
        self.sessions: list[Request] = []
        self.grammars: list[int] = []
        self.all: list[Request] = []

    def arrive(self) -> None:
        random = self.random
        prompt = [
            (1000 * random.randint(1, 2), random.randint(0, 20)),
            (10_000 * (len(self.all) + 2), random.randint(1, 15)),
        ]
        request = Request(
            len(self.all),
            prompt,
            random.randint(1, 20),
            priority=random.randint(0, 2),
            arrival_time=random.random(),
            client_index=random.randint(0, 1),
            min_tokens=random.choice([0, 0, 3]),
            stop_token_ids=random.choice([(), (77,)]),
            lora_name=random.choice(["a", "b", "c", None]) if "lora" in self.features else None,
            needs_grammar="grammar" in self.features and random.random() < 0.3,
            resumable="sessions" in self.features and random.random() < 0.3,
            skip_reading_prefix_cache=random.random() < 0.1,
        )
        self.all.append(request)
        if request.resumable:
            self.sessions.append(request)
        if request.needs_grammar:
            self.grammars.append(request.request_id)
        self.engine.add_request(request)

    def disturb(self) -> None:
        random = self.random
        if random.random() < 0.5:
            self.arrive()
        if self.all and random.random() < 0.05:
            self.engine.abort_requests([random.choice(self.all).request_id])
        if self.grammars and random.random() < 0.3:
            self.engine.grammar_ready(self.grammars.pop())
        if self.sessions and random.random() < 0.2:
            session = random.choice(self.sessions)
            if session.num_tokens < LONGEST - 45:
                self.engine.submit_input(
                    session.request_id, SessionInput(((500_000, 3),), 3, random.random())
                )
            else:
                self.end(session)
        if "pauses" in self.features and random.random() < 0.2:
            self.engine.pause(random.choice([0, 0, 1, 2]))
        if random.random() < 0.03:
            self.engine.reset_prefix_cache(preempt_running=random.random() < 0.3)

    def end(self, session: Request) -> None:
        self.sessions.remove(session)
        self.engine.submit_input(session.request_id, None)

    def step(self, always: bool = False) -> bool:
        """One step of the engine; whether it scheduled anything."""
        engine = self.engine
        output = engine.schedule()
        check_step(engine, output)
        busy = bool(output.requests)
        self.in_flight.append(output)
        if self.ahead and busy and len(self.in_flight) < 2:
            return True
        output = self.in_flight.popleft()
        sampled = [
            [
                self.random.choice([5, 6, 7, 77, EOS_TOKEN_ID])
                for _ in range(self.accepted(output, request) + 1)
            ]
            if samples
            else []
            for request, samples in zip(output.requests, output.samples, strict=True)
        ]
        report = self.connector.report(always) if self.connector else None
        engine.update(output, lambda _: sampled, report)
        if "spec" in self.features and not self.ahead:
            engine.propose_drafts(output, [self.random.randint(0, 2) if tokens else 0 for tokens in sampled])
        return busy

    def accepted(self, output: SchedulerOutput, request: Request) -> int:
        return self.random.randint(0, output.scheduled_spec_decode_tokens.get(request.request_id, 0))

    def finish(self) -> None:
        """Nothing new comes, and everything that requests wait for from outside does."""
        self.engine.pause(0)
        for request_id in self.grammars:
            self.engine.grammar_ready(request_id)
        for session in list(self.sessions):
            self.end(session)
        idle_steps = 0
        while (self.engine.has_work() or self.in_flight) and idle_steps < 10:
            idle_steps = 0 if self.step(always=True) else idle_steps + 1
            check(self.engine)


def later_switches(random: Random) -> dict[str, Any]:
    """Settings of later releases, most of them off in most engines."""
    return {
        "reserve_full_prompt": random.choice([None, False, True]),
        "watermark": random.choice([0.0, 0.0, 0.1]),
        "max_num_scheduled_tokens": random.choice([None, None, 12]),
        "max_active": random.choice([None, None, 2]),
        "long_prefill_adaptive": random.choice([False, False, True]),
        "long_prefill_token_threshold": random.choice([0, 0, 5]),
        "prefill_interval": random.choice([1, 1, 3]),
        "window_retention_tokens": random.choice(["release", None, 0, 24]),
    }


@settings(
    max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # seeds do not shrink
@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from(sorted(GROUPS)),
    features=st.sets(st.sampled_from(["spec", "lora", "grammar", "sessions", "connector", "pauses"])),
    version=st.sampled_from(["0.16.0", "0.16.0", "0.24.0", "0.30.0", "0.32.0", "0.33.0", "0.33.0"]),
    ahead=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    caching=st.booleans(),
    kind=st.sampled_from(["ngram", "draft_model", "eagle", "mtp_multi", "dflash"]),
    seqs=st.integers(1, 8),
    budget=st.integers(8, 64),
    spare=st.integers(0, 40),
)
@example(
    seed=19,
    groups="three",
    features={"spec", "pauses"},
    version="0.33.0",
    ahead=False,
    policy="fcfs",
    caching=False,
    kind="mtp_multi",
    seqs=1,
    budget=19,
    spare=2,
)
def test_laws_hold_after_every_step_and_everything_ends(
    seed: int,
    groups: str,
    features: set[str],
    version: str,
    ahead: bool,
    policy: str,
    caching: bool,
    kind: Any,
    seqs: int,
    budget: int,
    spare: int,
) -> None:
    if groups != "full":
        features = features - {"connector"}
    if groups == "mamba":
        features = features - {"spec"}  # chunks cut at states and chunks that feed a drafter need not agree
    engine_release = release(version)
    tracks = engine_release.rules.track_stale_output
    if ahead and "sessions" in features and not tracks:
        features = features - {"spec"}  # vLLM 0.16 fails an assertion when a turn ends with drafts in flight
    if budget < 2 * seqs + 8:
        kind = "ngram"  # others take places in the batch
    random = Random(seed)
    switches = later_switches(random)
    if groups == "mamba":  # a cap below the block size lets no prefill go on
        switches |= {"long_prefill_adaptive": False, "long_prefill_token_threshold": 0}
    drive = Drive(
        random,
        {
            "release": engine_release,
            **switches,
            "groups": GROUPS[groups],
            "hash_block_size": 4,
            "num_blocks": MAX_BLOCKS + spare,
            "max_model_len": LONGEST,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": budget,
            "policy": policy,
            "async_scheduling": ahead,
            "enable_caching": caching,
            "speculative": SpeculativeConfig(kind, 2) if "spec" in features else None,
            "max_loras": 2 if "lora" in features else None,
        },
        features,
    )
    for _ in range(40):
        drive.disturb()
        if drive.engine.has_work():
            drive.step()
        check(drive.engine)
    drive.finish()
    # holders in the waiting queue can block each other for good, as in vLLM; in early releases a reset
    # ahead of the GPU can lose a request's last token; both need the features named
    if not features & {"sessions", "connector"} and (tracks or not ahead):
        if (
            drive.engine.has_work()
        ):  # as in vLLM 0.33 a cap of one token starves a drafter that reads two ahead
            assert "spec" in features
            assert kind == "mtp_multi"
            assert engine_release.rules.last_chunks_feed_the_drafter
            assert switches["long_prefill_adaptive"]
            assert "which the drafter reads ahead over" in examine(drive.engine).reason
            return
        assert all(request.is_finished for request in drive.all)
        assert drive.engine.kv_cache.num_used_blocks == 0


def test_the_checks_can_fail() -> None:
    engine = make_engine()
    engine.add_request(Request(0, ((1, 20),), 5))
    engine.schedule()
    check(engine)
    engine.kv_cache.holders[1] = engine.kv_cache.holders[0]
    with pytest.raises(Exception, match="block 1 has reference count 1 but 2 holders"):
        check(engine)
