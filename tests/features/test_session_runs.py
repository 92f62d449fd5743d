"""Sessions in a run: closed over the answer's end, hits on their history, affinity, early ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.cluster.recorder import Status
from sim.simulation import simulate
from sim.workload.prompts import SessionPrompts
from tests.cluster.helpers import make_table, make_world, times_of, token_times_s
from tests.features.helpers import make_scenario


def session_table(prompt, output, think_s, *, after, arrival_s=None, rejected=()):
    """One session: rows in order of turns."""
    n = len(prompt)
    table = make_table([0.0] * n if arrival_s is None else arrival_s, prompt, output, rejected=rejected)
    return replace(
        table,
        session=np.zeros(n, np.int64),
        turn_after=np.array(after),
        think_s=np.array(think_s, dtype=float),
        prompts=SessionPrompts(np.zeros(n, np.int64)),
    )


def test_a_turn_comes_when_the_answer_has_ended_and_the_user_has_thought():
    """Steps of 1 s. Turn 1: tokens at 1, 2 and 3 s; 5 s of thought; turn 2 at 8 s: tokens at 9 and 10 s; no
    thought; turn 3 at 10 s.
    """
    world = make_world(session_table([10, 20, 30], [3, 2, 1], [0, 5, 0], after=[-1, 0, 1]))
    world.run()
    assert list(world.recorder.requests.arrival_s) == [0, 8, 10]
    assert [token_times_s(world, turn) for turn in range(3)] == [[1, 2, 3], [9, 10], [11]]


def test_a_turn_does_not_come_before_its_own_time():
    """As in a trace: the second row is due at 6 s, the answer before it ends at 3 s; the third at 7, ends at
    8.
    """
    table = session_table([10, 20, 30], [3, 2, 1], [0, 0, 0], after=[-1, 0, 1], arrival_s=[0.0, 6.0, 7.0])
    world = make_world(table)
    world.run()
    assert list(world.recorder.requests.arrival_s) == [0, 6, 8]


def test_a_turn_finds_exactly_the_full_blocks_of_its_history():
    """Blocks of 16. Turn 1: 40 + 20 tokens, of which the last has no KV: 59, 3 full blocks. Turn 2: 70 + 30,
    99 with KV: 6 blocks. Turn 3 repeats those 100 tokens and asks 1 more.
    """
    world = make_world(session_table([40, 70, 101], [20, 30, 5], [0, 1, 1], after=[-1, 0, 1]))
    world.run()
    assert list(world.recorder.requests.cached_tokens) == [0, 48, 96]


LENGTHS = {"kind": "uniform", "prompt_tokens": (20, 300), "output_tokens": (5, 100)}
CHATS = {
    "kind": "poisson",
    "rate_per_s": 2,
    "num_requests": 60,
    "lengths": LENGTHS,
    "sessions": {
        "turns": {"kind": "uniform", "range": (2, 6)},
        "think_time_s": {"kind": "exponential", "mean_s": 4},
    },
}


def turns_of(result):
    """The requests with their row before, first turns left out."""
    requests, after = result.requests, result.workload.table.turn_after
    later = np.flatnonzero(after >= 0)
    return requests.iloc[later].reset_index(drop=True), requests.iloc[after[later]].reset_index(drop=True)


def test_in_a_whole_run_hits_and_times_follow_from_the_turn_before():
    """With room for all, every turn hits the full blocks of prompt and output before it, less one token."""
    result = simulate(make_scenario(CHATS), check=True)
    turn, before = turns_of(result)
    history = before["prompt_tokens"] + before["output_tokens"] - 1
    assert (turn["cached_tokens"] == history // 16 * 16).all()
    think_s = result.workload.table.think_s[result.workload.table.turn_after >= 0]
    gaps_s = turn["arrival_s"] - before["last_token_s"]
    assert np.allclose(gaps_s, think_s, atol=1e-6)
    assert result.summary["num_sessions"] == 60
    assert result.summary["num_turns_finished"] == len(result.requests)


def test_plans_of_steady_decode_change_nothing():
    scenario = make_scenario(CHATS)
    assert simulate(scenario).requests.equals(simulate(scenario, plain=True).requests)


def test_the_same_seed_gives_the_same_run():
    scenario = make_scenario({**CHATS, "num_requests": 20})
    assert simulate(scenario).requests.equals(simulate(scenario).requests)


# --- closed loops -------------------------------------------------------------------------------------------


def test_users_of_a_closed_loop_hold_one_session_each():
    """5 users, 20 sessions of 3 turns: never more than 5 requests in flight, and a session begins when one
    ends.
    """
    workload = {
        "kind": "closed_loop",
        "num_requests": 20,
        "max_concurrency": 5,
        "lengths": LENGTHS,
        "sessions": {"turns": 3, "think_time_s": 2},
    }
    result = simulate(make_scenario(workload), check=True)
    requests = result.requests
    spans = requests.groupby("session").agg(begin=("arrival_s", "min"), end=("last_token_s", "max"))
    begins, ends = np.sort(spans["begin"]), np.sort(spans["end"])
    assert begins[:5].tolist() == [0.0] * 5
    assert np.allclose(begins[5:], ends[:15], atol=1e-6)


def test_a_cap_on_an_open_loop_counts_sessions():
    """One at a time: the second session begins when the first has said its last."""
    table = session_table([10, 20, 10, 20], [1, 1, 1, 1], [0, 5, 0, 5], after=[-1, 0, -1, 2])
    table = replace(table, session=np.array([0, 0, 1, 1]), prompts=SessionPrompts(np.array([0, 0, 1, 1])))
    world = make_world(table, max_concurrency=1)
    world.run()
    assert list(world.recorder.requests.arrival_s) == [0, 6, 7, 13]
    assert world.recorder.requests.client_queue_s[2] == 7


# --- early ends ---------------------------------------------------------------------------------------------


def test_a_session_ends_with_a_turn_that_is_refused():
    table = session_table([10, 20, 30], [1, 1, 1], [0, 0, 0], after=[-1, 0, 1], rejected=[1])
    world = make_world(table)
    world.run()
    assert list(world.recorder.requests.status) == [Status.FINISHED, Status.REJECTED, Status.NOT_SENT]
    assert times_of(world).done.sum() == 1


def test_impatient_users_leave_and_it_is_counted():
    workload = {**CHATS, "rate_per_s": 30, "timeouts": {"total_s": 0.6}}
    result = simulate(make_scenario(workload), check=True)
    summary = result.summary
    table, status = result.workload.table, np.array(result._recorder.requests.status)
    left = 0
    for row in np.flatnonzero(table.turn_after >= 0):
        before = status[table.turn_after[row]]
        if before in (Status.ABORTED, Status.NOT_SENT):
            assert status[row] == Status.NOT_SENT
        left += before == Status.ABORTED
    assert left > 0
    assert summary["num_sessions_left_early"] == left
    assert summary["num_not_sent"] == (status == Status.NOT_SENT).sum()
    assert any("turns were not sent: one before them was refused or aborted" in n for n in result.notes)
    assert not any("horizon" in note for note in result.notes)


# --- routing ------------------------------------------------------------------------------------------------


def test_affinity_keeps_a_session_on_its_replica():
    cluster = {"replicas": 3, "router": {"kind": "session"}}
    result = simulate(make_scenario(CHATS, cluster=cluster))
    replicas = result.requests.groupby("session")["replica"].nunique()
    assert (replicas == 1).all()
    assert set(result.requests["replica"]) == {0, 1, 2}
    turn, before = turns_of(result)
    assert (turn["cached_tokens"] == (before["prompt_tokens"] + before["output_tokens"] - 1) // 16 * 16).all()


def test_affinity_hits_more_than_chance():
    def hits(kind):
        cluster = {"replicas": 3, "router": {"kind": kind}}
        return simulate(make_scenario(CHATS, cluster=cluster)).summary["prefix_cache_hit_rate"]

    assert hits("session") > 1.5 * hits("random")


def test_without_sessions_affinity_is_least_outstanding():
    plain = {"kind": "poisson", "rate_per_s": 20, "num_requests": 100, "lengths": LENGTHS}
    runs = [
        simulate(make_scenario(plain, cluster={"replicas": 3, "router": {"kind": kind}})).requests
        for kind in ("session", "least_outstanding")
    ]
    assert runs[0].equals(runs[1])


# --- traces -------------------------------------------------------------------------------------------------


def test_a_followed_trace_waits_for_answers_and_finds_its_history(tmp_path: Path):
    """The second row of the session is due at 0.1 s, long before the answer of 200 tokens has ended."""
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,session\n0.0,100,200,a\n0.1,400,10,a\n60.0,500,10,a\n"
    )
    workload = {"kind": "trace", "path": str(path), "follow_sessions": True}
    requests = simulate(make_scenario(workload), check=True).requests
    assert requests["arrival_s"][1] == pytest.approx(requests["last_token_s"][0], abs=1e-6)
    assert requests["arrival_s"][2] == 60.0
    assert requests["cached_tokens"].tolist() == [0, 299 // 16 * 16, 409 // 16 * 16]


def test_a_trace_goes_on_after_a_refused_turn(tmp_path: Path):
    """What the recorded user did next is known."""
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,session\n0.0,100,20,a\n1.0,90000,10,a\n2.0,500,10,a\n"
    )
    workload = {"kind": "trace", "path": str(path), "follow_sessions": True}
    requests = simulate(make_scenario(workload), check=True).requests
    assert requests["status"].tolist() == ["finished", "rejected", "finished"]
