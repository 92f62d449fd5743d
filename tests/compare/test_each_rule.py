"""Each rule alone in a case small enough to count on paper: the newest release with it, and without.

The expected numbers follow from the words of the rule and from the sizes in the case (16 tokens a block).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler import (
    EOS_TOKEN_ID,
    EngineCore,
    ExternalMatch,
    GroupKind,
    KVGroupSpec,
    Request,
    RequestStatus,
    SessionInput,
)
from scheduler.config import SpeculativeConfig
from scheduler.connector import KVReport
from scheduler.release import release
from sim.scenario.rules import RULE_NAMES
from tests.scheduler.helpers import free_blocks, ids, make_engine, run, sample, scheduled, step

MakeEngine = Callable[..., EngineCore]
Case = Callable[[MakeEngine], object]

CASES: dict[str, tuple[Case, object, object]] = {}
ELSEWHERE = {
    "empty_batches_queue": "an engine's own loop; the recorded runs of tests/golden decide it",
    "enter_processed_tokens": "output of a bad load thrown away; recorded runs of tests/golden decide it",
    "read_states_once_written": "Mamba layers; the recorded runs of tests/golden decide it",
    "checkpoint_states": "Mamba layers; the recorded runs of tests/golden decide it",
}


def rule(name: str, *, without: object, with_it: object) -> Callable[[Case], Case]:
    """Registers a case: what it shows where the rule is off, and where it is on."""

    def register(case: Case) -> Case:
        CASES[name] = (case, without, with_it)
        return case

    return register


class Shelf:
    """A connector that has some tokens for one request, or for all."""

    def __init__(
        self, tokens: int, *, asynchronous: bool = False, only: int | None = None, keep: bool = False
    ):
        self.tokens, self.asynchronous, self.only, self.keep = tokens, asynchronous, only, keep

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch:
        has = self.only in (None, request.request_id) and request.num_computed_tokens == 0
        tokens = max(self.tokens - num_local_tokens, 0) if has else 0
        return ExternalMatch(tokens, self.asynchronous and tokens > 0)

    def note_allocated(self, request: Request, num_external_tokens: int) -> None: ...

    def delays_free(self, request: Request) -> bool:
        return self.keep


def request(number: int, prompt_tokens: int, max_tokens: int = 50, **knobs: Any) -> Request:
    """Prompts of different numbers have nothing in common."""
    first = knobs.pop("first", 10_000 * (number + 1))
    return Request(number, ((first, prompt_tokens),), max_tokens, arrival_time=float(number), **knobs)


def drafting(kind: Any, number: int, **knobs: Any) -> SpeculativeConfig:
    return SpeculativeConfig(kind, number, **knobs)


def test_every_rule_has_its_case_or_a_reason_to_be_tested_elsewhere():
    assert sorted([*CASES, *ELSEWHERE]) == sorted(RULE_NAMES)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_makes_the_difference_that_its_words_say(name: str):
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    case, without, with_it = CASES[name]

    def maker(value: bool) -> MakeEngine:
        rules = release("0.33.0").with_rules(**{name: value})
        return lambda **knobs: make_engine(release=rules, **knobs)

    assert case(maker(False)) == without
    assert case(maker(True)) == with_it


# --- pipelines ----------------------------------------------------------------------------------------------


@rule("pipelines_space_decodes", without=[1, 2, 3, 4, 5], with_it=[1, 3, 5])
def _(make: MakeEngine) -> object:
    """Two stages: in which of five schedule() calls a lone request takes part, all still in flight."""
    engine = make(async_scheduling=True, pipeline_parallel_size=2)
    engine.add_request(request(0, 10))
    return [call for call in range(1, 6) if scheduled(engine.schedule())]


@rule("pipelines_plan_one_ahead", without=64, with_it=96)
def _(make: MakeEngine) -> object:
    """Two stages, windows of one token, steps of 32: the tokens in flight count in the room for a prompt."""
    groups = (KVGroupSpec(GroupKind.SLIDING, window=1),)
    engine = make(
        groups=groups,
        async_scheduling=True,
        pipeline_parallel_size=2,
        max_num_batched_tokens=32,
        num_blocks=100,
    )
    room = engine.admission_room
    return (room.num_wanted(request(0, 1000), 0, engine.kv_cache.no_hits()) - 1) * 16


# --- running phase ------------------------------------------------------------------------------------------


@rule("victims_move_the_walk", without={1: 1}, with_it={1: 1, 2: 1})
def _(make: MakeEngine) -> object:
    """The victim stands first, passed over since its last token is in flight; the third is next."""
    engine = make(policy="priority", async_scheduling=True, num_blocks=4)
    engine.add_request(request(0, 10, 2, priority=9))
    first = engine.schedule()
    engine.add_request(request(1, 16))
    engine.add_request(request(2, 10))
    engine.schedule()
    engine.update(first, sample)
    return scheduled(engine.schedule())


@rule("lone_requests_ignore_the_threshold", without={0: 8}, with_it={0: 20})
def _(make: MakeEngine) -> object:
    engine = make(long_prefill_token_threshold=8)
    engine.add_request(request(0, 20))
    return scheduled(engine.schedule())


@rule("self_victims_do_not_end_the_phase", without={}, with_it={1: 1})
def _(make: MakeEngine) -> object:
    """The first in the list needs a third block of two, and is itself the least important."""
    engine = make(policy="priority", num_blocks=3)
    engine.add_request(request(0, 15, priority=9))
    step(engine)
    engine.add_request(request(1, 10))
    step(engine)
    return scheduled(engine.schedule())


@rule("drafting_slots_are_charged", without={0: 10}, with_it={0: 9})
def _(make: MakeEngine) -> object:
    engine = make(speculative=drafting("draft_model", 2), max_num_batched_tokens=10)
    engine.add_request(request(0, 100))
    return scheduled(engine.schedule())


@rule("last_chunks_feed_the_drafter", without={0: 8}, with_it={0: 7})
def _(make: MakeEngine) -> object:
    """Ten tokens, eight a step, and a drafter that reads three ahead."""
    engine = make(speculative=drafting("mtp_multi", 3), max_num_batched_tokens=8)
    engine.add_request(request(0, 10))
    return scheduled(engine.schedule())


# --- waiting phase ------------------------------------------------------------------------------------------


@rule("pad_new_decodes", without={1: 1}, with_it={1: 3})
def _(make: MakeEngine) -> object:
    """All but one token of the second prompt are cached: it looks like a decode, with two drafts."""
    engine = make(speculative=drafting("ngram", 2))
    engine.add_request(request(0, 17, 1, first=1000))
    run(engine)
    engine.add_request(request(1, 17, first=1000))
    return scheduled(engine.schedule())


@rule("idle_sessions_take_a_place", without=[1], with_it=[])
def _(make: MakeEngine) -> object:
    engine = make(max_num_seqs=1)
    engine.add_request(request(0, 20, resumable=True))
    step(engine)
    step(engine, [[EOS_TOKEN_ID]])
    engine.add_request(request(1, 20))
    return ids(engine.schedule().requests)


@rule("count_lookups_when_admitted", without=40 + 3 * 20, with_it=40)
def _(make: MakeEngine) -> object:
    """The second request is looked up in each of three steps, and never finds room."""
    engine = make(num_blocks=4)
    engine.add_request(request(0, 40, 8))
    engine.add_request(request(1, 20))
    for _ in range(3):
        step(engine)
    return engine.prefix_cache_stats.queries


@rule("holders_first", without=[1], with_it=[0])
def _(make: MakeEngine) -> object:
    """One place. A session has its next input ready when its turn ends; another request came before that."""
    engine = make(max_num_seqs=1)
    engine.add_request(request(0, 20, resumable=True))
    step(engine)
    engine.add_request(request(1, 20))
    engine.submit_input(0, SessionInput(((900, 10),), 10))
    step(engine, [[EOS_TOKEN_ID]])
    return ids(engine.schedule().requests)


@rule("loads_leave_room_for_prefills", without="WAITING_FOR_REMOTE_KVS", with_it="WAITING")
def _(make: MakeEngine) -> object:
    """Six blocks. A prefill has one of its four; a load of three would leave two for the other three."""
    engine = make(
        num_blocks=7, long_prefill_token_threshold=16, connector=Shelf(48, asynchronous=True, only=1)
    )
    loading = request(1, 64)
    engine.add_request(request(0, 64))
    engine.add_request(loading)
    step(engine)
    return loading.status.name


@rule("lookahead_at_admission", without=1, with_it=2)
def _(make: MakeEngine) -> object:
    """A prompt fills its block; three slots for the drafter do not fit into it."""
    engine = make(speculative=drafting("eagle", 3))
    engine.add_request(request(0, 16))
    engine.schedule()
    return engine.kv_cache.num_used_blocks


@rule("all_running_adapters_count", without=[1], with_it=[])
def _(make: MakeEngine) -> object:
    """One slot. The running request is not in this step, for its last token is in flight."""
    engine = make(max_loras=1, async_scheduling=True)
    engine.add_request(request(0, 10, 2, lora_name="a"))
    first = engine.schedule()
    engine.schedule()
    engine.update(first, sample)
    engine.add_request(request(1, 10, lora_name="b"))
    return ids(engine.schedule().requests)


@rule("skipping_readers_still_ask_the_connector", without={0: 8}, with_it={0: 40})
def _(make: MakeEngine) -> object:
    """It asks in every release; in later ones the answer is ignored."""
    engine = make(connector=Shelf(32))
    engine.add_request(request(0, 40, skip_reading_prefix_cache=True))
    return scheduled(engine.schedule())


@rule("reserve_full_prompt", without={0: 1, 1: 16}, with_it={0: 1})
def _(make: MakeEngine) -> object:
    """Two of four blocks are held; the next prompt needs three, its first chunk one."""
    engine = make(num_blocks=5, long_prefill_token_threshold=16)
    engine.add_request(request(0, 20))
    step(engine)
    engine.add_request(request(1, 48))
    return scheduled(engine.schedule())


# --- blocks -------------------------------------------------------------------------------------------------


@rule("reuse_unhashed_first", without=3, with_it=2)
def _(make: MakeEngine) -> object:
    """Blocks 1 and 2 are given back, 2 only partly filled; 3 was never used."""
    engine = make()
    engine.add_request(request(0, 20, 1))
    step(engine)
    return free_blocks(engine)[0]


@rule("enter_reachable_window_blocks", without=5, with_it=1)
def _(make: MakeEngine) -> object:
    """A window of 17 tokens: a replay of 80 begins behind block 4 and needs the one before."""
    engine = make(groups=(KVGroupSpec(GroupKind.SLIDING, window=17),))
    engine.add_request(request(0, 80, 1))
    step(engine)
    return engine.kv_cache.num_cached_free_blocks


@rule("windows_drop_processed_tokens", without=2, with_it=3)
def _(make: MakeEngine) -> object:
    """Token 33 needs a third block; the first has left the window of 16 if tokens in flight count."""
    engine = make(groups=(KVGroupSpec(GroupKind.SLIDING, window=16),), async_scheduling=True)
    engine.add_request(request(0, 32))
    engine.schedule()
    engine.schedule()
    return engine.kv_cache.num_used_blocks


@rule("enter_common_lengths", without=3 + 1, with_it=2 + 1)
def _(make: MakeEngine) -> object:
    """48 tokens in blocks of 16 and of 32: both kinds can hit 32."""
    engine = make(groups=(KVGroupSpec(block_size=16), KVGroupSpec(block_size=32)))
    engine.add_request(request(0, 48, 1))
    step(engine)
    return engine.kv_cache.num_cached_free_blocks


@rule("enter_after_outputs", without=[0], with_it=[1])
def _(make: MakeEngine) -> object:
    """Accepted drafts fill the first block."""
    engine = make(speculative=drafting("ngram", 2))
    only = request(0, 14)
    engine.add_request(only)
    output, _ = step(engine)
    engine.propose_drafts(output, [2])
    step(engine, [[5, 5, 5]])
    return only.num_cached_blocks


@rule("drop_last_hit_once", without=48, with_it=64)
def _(make: MakeEngine) -> object:
    """Five blocks are cached in both kinds of groups, and the drafter wants the last hit computed again.

    One block each is 64 tokens for both; if the second kind gives up one of what the first has left, 48.
    """
    groups = (KVGroupSpec(), KVGroupSpec(GroupKind.SLIDING, window=1000))
    engine = make(groups=groups, speculative=drafting("eagle", 1, lookahead_hashes=False))
    engine.add_request(request(0, 90, 1, first=1000))
    run(engine)
    second = request(1, 81, first=1000)
    engine.add_request(second)
    step(engine)
    return second.num_cached_tokens


@rule("defer_frees_in_flight", without=0, with_it=2)
def _(make: MakeEngine) -> object:
    """A request is aborted while the GPU writes its two blocks."""
    engine = make(async_scheduling=True, connector=Shelf(0))
    engine.add_request(request(0, 20))
    engine.schedule()
    engine.abort_requests([0])
    return engine.kv_cache.num_used_blocks


@rule("lookahead_hashes", without=16, with_it=32)
def _(make: MakeEngine) -> object:
    engine = make(speculative=drafting("eagle", 1))
    engine.add_request(request(0, 33, 1, first=1000))
    run(engine)
    second = request(1, 33, first=1000)
    engine.add_request(second)
    step(engine)
    return second.num_cached_tokens


# --- update, sessions, connector ----------------------------------------------------------------------------


@rule("track_stale_output", without=1, with_it=0)
def _(make: MakeEngine) -> object:
    """Two outputs are in flight when the cache is reset; a flag remembers only one of them."""
    engine = make(async_scheduling=True)
    only = request(0, 20)
    engine.add_request(only)
    first, second = engine.schedule(), engine.schedule()
    engine.reset_prefix_cache(preempt_running=True)
    for output in (first, second):
        engine.update(output, sample)
    return only.num_output_tokens


@rule("ignore_min_tokens", without=False, with_it=True)
def _(make: MakeEngine) -> object:
    engine = make()
    only = request(0, 20, min_tokens=3)
    engine.add_request(only)
    step(engine, [[EOS_TOKEN_ID]])
    return only.is_finished


@rule("uncount_cut_tokens", without=14 + 3, with_it=14 + 2)
def _(make: MakeEngine) -> object:
    """Of a token and two accepted drafts the second ends the turn."""
    engine = make(speculative=drafting("ngram", 2))
    only = request(0, 14, resumable=True)
    engine.add_request(only)
    output, _ = step(engine)
    engine.propose_drafts(output, [2])
    step(engine, [[5, EOS_TOKEN_ID, 5]])
    return only.num_computed_tokens


@rule("merge_keeps_all_but_the_last_token", without=50, with_it=7)
def _(make: MakeEngine) -> object:
    """With the next input comes how long the next answer may be."""
    engine = make()
    session = request(0, 20, resumable=True)
    engine.add_request(session)
    step(engine)
    engine.submit_input(0, SessionInput(((900, 10),), 7))
    step(engine, [[EOS_TOKEN_ID]])
    return session.max_tokens


@rule("sessions_queue_after_the_update", without=[], with_it=[1])
def _(make: MakeEngine) -> object:
    """A session is preempted, and then the token in flight ends its turn: it must stay in the queue, idle."""
    engine = make(async_scheduling=True, num_blocks=3)
    engine.add_request(request(0, 16))
    engine.add_request(request(1, 10, resumable=True))
    first = engine.schedule()
    engine.schedule()
    engine.update(first, lambda _: [[5], [EOS_TOKEN_ID]])
    return ids(engine.waiting)


@rule("loads_count_exactly", without={0: 8}, with_it={0: 20})
def _(make: MakeEngine) -> object:
    """20 of 40 tokens are loaded, into two blocks."""
    engine = make(connector=Shelf(20, asynchronous=True))
    engine.add_request(request(0, 40))
    output = engine.schedule()
    engine.update(output, sample, KVReport(received=[0]))
    return scheduled(engine.schedule())


@rule("step_while_blocks_are_held", without=False, with_it=True)
def _(make: MakeEngine) -> object:
    engine = make(connector=Shelf(0, keep=True))
    only = request(0, 20, 1)
    engine.add_request(only)
    step(engine)
    step(engine, [])
    assert only.status is RequestStatus.FINISHED_LENGTH_CAPPED
    return engine.has_work()
