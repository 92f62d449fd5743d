"""Switches that later releases brought: what each does in a case one can count, and who refuses it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.errors import InputError
from sim.scenario.rules import SINCE
from sim.simulation import RunResult, simulate
from tests.compare.helpers import burst, small_scenario

ON = {
    "max_num_scheduled_tokens": 100,
    "pause_events": ({"at_s": 1.0, "state": "paused_all"},),
    "window_retention_tokens": 64,
    "max_active": 2,
    "long_prefill_adaptive": True,
    "prefill_interval": 4,
}


def prefill_tokens(result: RunResult) -> list[int]:
    return list(result.steps["prefill_tokens"])


def test_every_switch_is_tried_here():
    assert set(ON) == set(SINCE)


@pytest.mark.parametrize("name", SINCE)
def test_a_release_that_lacks_a_switch_refuses_it_and_says_since_when_there_is_one(name):
    major, minor, patch = SINCE[name].split(".")
    small_scenario(SINCE[name], **{name: ON[name]})
    before = f"{major}.{int(minor) - 1}.{patch}"
    with pytest.raises(InputError) as caught:
        small_scenario(before, **{name: ON[name]})
    assert (
        str(caught.value) == f"engine.{name}: known of vLLM since {SINCE[name]}; engine.version is {before}"
    )


def test_a_cap_on_scheduled_tokens_cuts_a_prompt_though_the_batch_could_hold_it():
    assert prefill_tokens(simulate(small_scenario(workload=burst(1, 250, 1))))[0] == 250
    capped = simulate(small_scenario(workload=burst(1, 250, 1), max_num_scheduled_tokens=100))
    assert prefill_tokens(capped) == [100, 100, 50]


def test_a_cap_that_no_prompt_could_ever_pass_whole_is_refused_without_chunked_prefill():
    with pytest.raises(InputError, match="max_num_scheduled_tokens: without chunked prefill a step must"):
        small_scenario(
            max_num_batched_tokens=1024, max_num_scheduled_tokens=512, enable_chunked_prefill=False
        )


def test_no_more_requests_run_than_are_to_be_active():
    assert simulate(small_scenario(workload=burst(5, 20, 5))).steps["num_running"].max() == 5
    assert simulate(small_scenario(workload=burst(5, 20, 5), max_active=2)).steps["num_running"].max() == 2


def test_an_adaptive_threshold_shares_the_step_among_all_requests():
    """Four prompts of 1,000 tokens and 400 tokens a step: 100 for each, or all for the first.

    The first is alone in its first step, for the front end takes in one after the other.
    """
    work = burst(4, 1000, 1)
    greedy = simulate(small_scenario(workload=work, max_num_batched_tokens=400))
    adaptive = {"max_num_batched_tokens": 400, "long_prefill_adaptive": True}
    shared = simulate(small_scenario(workload=work, long_prefill_token_threshold=1, **adaptive))
    without_threshold = simulate(small_scenario(workload=work, **adaptive))
    assert without_threshold.requests.equals(greedy.requests)
    assert greedy.steps["num_running"].iloc[1] == 1
    assert shared.steps["num_running"].iloc[1] == 4
    assert prefill_tokens(shared)[0] == 400


def test_between_two_prefills_decodes_have_the_steps_of_the_interval_to_themselves():
    """A second prompt takes what one decode leaves of 100 tokens: in every step, or in every fourth."""
    work = burst(2, 500, 60)
    every = simulate(small_scenario(workload=work, max_num_batched_tokens=100))
    fourth = simulate(small_scenario(workload=work, max_num_batched_tokens=100, prefill_interval=4))
    for result, gap in ((every, 1), (fourth, 4)):
        steps = result.steps
        beside = [i for i in range(len(steps)) if steps["prefill_tokens"][i] and steps["decode_tokens"][i]]
        assert len(beside) > 3
        assert all(later - earlier == gap for earlier, later in pairwise(beside))


@pytest.mark.parametrize(
    ("engine", "hits"),
    [
        ({}, 512),
        ({"window_retention_tokens": 64}, 1024),
        ({"rules": {"enter_reachable_window_blocks": False}}, 1024),
    ],
)
def test_what_is_kept_of_a_window_decides_who_hits_a_shared_prefix(engine, hits):
    """Three prompts, one after the other, share their first 512 tokens and go on for 200 of their own.

    The window is 128 tokens. Kept of it is what a replay of the first prompt would need, so the second finds
    nothing where the texts part; but the second notices, and keeps that place for the third.
    """
    work = {
        "kind": "constant",
        "rate_per_s": 1,
        "num_requests": 3,
        "lengths": {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 1},
        "prefixes": {"prefix_tokens": 512},
    }
    scenario = small_scenario(workload=work, model="openai/gpt-oss-20b", **engine)
    assert simulate(scenario).summary["prefix_cache_hits"] == hits


def speculating(version: str = "0.33.0", requests: int = 1, ahead: bool = True, **more):
    """Three drafts, all of them right, or fewer as `more` says."""
    section = {"method": "eagle", "num_speculative_tokens": 3, "acceptance": 1.0} | more
    work = burst(requests, 20, 21)
    return small_scenario(version, work, async_scheduling=ahead, speculative_config=section)


def decode_tokens(result: RunResult) -> set[int]:
    """Tokens of the steps in which everybody decodes, but for those that the answers' ends cut."""
    steps = result.steps
    return set(steps["decode_tokens"][(steps["prefill_tokens"] == 0) & (steps["decode_tokens"] > 0)][:4])


def test_the_number_of_drafts_can_depend_on_the_size_of_the_batch():
    """A request verifies its drafts and gets one token more; alone one draft, in company three."""
    ranges = ((1, 1, 1), (2, 64, 3))
    assert decode_tokens(simulate(speculating())) == {1 + 3}
    assert decode_tokens(simulate(speculating(drafts_by_batch=ranges))) == {1 + 1}
    assert decode_tokens(simulate(speculating(requests=2, drafts_by_batch=ranges))) == {2 * (1 + 3)}


def test_drafting_costs_as_many_passes_as_there_are_drafts():
    """A second for each pass: steps of one request take two seconds less with one draft in place of three."""

    def step_s(**more) -> float:
        return float(simulate(speculating(draft_pass_s=1.0, **more)).steps["step_time_s"].iloc[2])

    assert step_s() - step_s(drafts_by_batch=((1, 1, 1),)) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"version": "0.32.0"}, "known of vLLM since 0.33.0; engine.version is 0.32.0"),
        ({"ahead": False}, "has an effect with asynchronous scheduling only"),
        ({"drafts_by_batch": ((1, 4, 4),)}, r"drafts_by_batch \[1, 4, 4\] must begin above 0"),
        ({"drafts_by_batch": ((1, 4, 2), (4, 9, 1))}, r"drafts_by_batch \[4, 9, 1\] must begin above 4"),
    ],
)
def test_draft_counts_that_no_engine_takes_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        speculating(**{"drafts_by_batch": ((1, 1, 1),)} | more)


def test_room_at_admission_can_be_asked_for_in_any_release_and_the_run_says_where_vllm_had_none():
    notes = simulate(small_scenario("0.16.0", watermark=0.1, reserve_full_prompt=True)).notes
    told = (
        "vLLM 0.16.0 has no reserve_full_prompt (since 0.23.0), no watermark (since 0.26.0): this run adds it"
    )
    assert notes == [told]
    assert simulate(small_scenario("0.33.0", watermark=0.1, reserve_full_prompt=True)).notes == []
