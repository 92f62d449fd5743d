"""Client classes in a run: priorities, their own SLOs, and a table that adds up."""

from __future__ import annotations

import numpy as np
import pytest

from sim.report import screen
from sim.results.summary import Group, jain_index
from sim.simulation import simulate
from tests.features.helpers import make_scenario
from tests.run.helpers import make_times

CHAT = {
    "kind": "poisson",
    "rate_per_s": 6,
    "num_requests": 180,
    "lengths": {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 60},
}
BATCH = {
    "kind": "burst",
    "num_requests": 60,
    "lengths": {"kind": "fixed", "prompt_tokens": 1500, "output_tokens": 200},
}
CLASSES = {
    "chat": {"priority": 0, "slo": {"ttft_p99": "300ms"}},
    "batch": {"priority": 5, "slo": {"e2e_p99": "60s"}},
}
MIX = {"kind": "mix", "workloads": {"chat": CHAT, "batch": BATCH}, "classes": CLASSES}
FEW = {"max_num_seqs": 16, "max_model_len": 4096}


def test_the_table_of_classes_adds_up_and_agrees_with_the_requests():
    result = simulate(make_scenario(MIX, engine=FEW), check=True)
    table, requests, summary = result.summary["classes"], result.requests, result.summary
    assert list(table) == ["chat", "batch"]
    assert sum(row["completed"] for row in table.values()) == summary["completed"] == 240
    assert sum(row["num_preemptions"] for row in table.values()) == summary["num_preemptions"]
    for name, row in table.items():
        of = requests[requests["class"] == name]
        e2e_ms = 1000 * (of["last_token_s"] - of["arrival_s"])
        tokens = (of["prompt_tokens"] + of["output_tokens"]).sum()
        assert row["num_requests"] == len(of)
        assert row["median_e2el_ms"] == pytest.approx(np.median(e2e_ms), rel=1e-5)
        assert row["token_share"] == pytest.approx(
            tokens / (requests["prompt_tokens"] + requests["output_tokens"]).sum()
        )
        waits_s = (of["first_scheduled_s"] - of["arrival_s"]).max()
        assert row["max_wait_s"] == pytest.approx(waits_s, abs=1e-6)


def test_every_class_is_judged_by_its_own_slo_and_all_together():
    result = simulate(make_scenario(MIX, engine=FEW))
    requests, summary = result.requests, result.summary
    chat, batch = (requests[requests["class"] == name] for name in ("chat", "batch"))
    good_chat = (chat["first_token_s"] - chat["arrival_s"] <= 0.3).sum()
    good_batch = (batch["last_token_s"] - batch["arrival_s"] <= 60).sum()
    assert summary["classes"]["chat"]["slo_attainment"] == pytest.approx(good_chat / 180)
    assert summary["classes"]["batch"]["slo_attainment"] == pytest.approx(good_batch / 60)
    assert summary["slo_attainment"] == pytest.approx((good_chat + good_batch) / 240)
    assert summary["request_goodput"] == pytest.approx((good_chat + good_batch) / summary["duration"])


def test_who_hangs_up_in_the_queue_has_waited_until_then():
    classes = {"chat": {"priority": 0}, "batch": {"priority": 5, "timeouts": {"first_token_s": 2}}}
    result = simulate(make_scenario({**MIX, "classes": classes}, engine=FEW))
    batch = result.requests[result.requests["class"] == "batch"]
    gone = batch[batch["status"].eq("aborted") & batch["first_scheduled_s"].isna()]
    assert len(gone) > 10
    assert (gone["aborted_s"] - gone["arrival_s"]).to_numpy() == pytest.approx(2.0, abs=1e-6)
    assert result.summary["classes"]["batch"]["max_wait_s"] == pytest.approx(2.0, abs=1e-6)
    assert result.clock_s > 10


def test_a_class_without_an_slo_has_the_one_of_the_scenario():
    classes = {"chat": {"slo": {"ttft_p99": "1ms"}}}
    result = simulate(make_scenario({**MIX, "classes": classes}, engine=FEW, slo={"ttft_p99": "1000s"}))
    table = result.summary["classes"]
    assert table["chat"]["slo_attainment"] == 0.0
    assert table["batch"]["slo_attainment"] == 1.0
    assert result.summary["slo_attainment"] == pytest.approx(60 / 240)


def test_priority_serves_chats_past_a_queue_of_batch_work():
    """60 batch requests stand in line for 16 places. First come, first served, chats wait behind them; by
    priority they take the next place that is free.
    """

    def ttft_ms(policy):
        engine = {**FEW, "scheduling_policy": policy}
        return simulate(make_scenario(MIX, engine=engine), check=True).summary["classes"]["chat"][
            "p99_ttft_ms"
        ]

    assert ttft_ms("priority") < 0.5 * ttft_ms("fcfs")


def test_classes_that_see_the_same_speed_have_a_jain_index_of_one():
    twins = {"kind": "mix", "workloads": {"a": CHAT, "b": CHAT}}
    assert simulate(make_scenario(twins)).summary["class_jain_index"] > 0.99


def test_jains_index_by_hand():
    """11 tokens in 11/3 s and in 11 s: speeds 3 and 1, so (3 + 1)² / (2 · (9 + 1)) = 0.8."""
    times = make_times([0.0, 0.0], [11 / 30, 1.1])
    groups = [Group("fast", np.array([True, False]), ()), Group("slow", np.array([False, True]), ())]
    assert jain_index(groups, times) == pytest.approx(0.8)


def test_the_screen_shows_a_line_for_every_class():
    text = screen.render(simulate(make_scenario(MIX, engine=FEW)).summary)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("class"))
    assert header.split() == ["class", "done", "p99", "TTFT", "p99", "TPOT", "SLO"]
    assert [line.split()[:2] for line in lines[lines.index(header) + 1 :][:2]] == [
        ["chat", "180"],
        ["batch", "60"],
    ]


def test_one_class_makes_no_table():
    summary = simulate(make_scenario(CHAT)).summary
    assert "classes" not in summary
    assert "class_jain_index" not in summary


def test_the_same_seed_gives_the_same_run():
    scenario = make_scenario(MIX, engine=FEW)
    assert simulate(scenario).requests.equals(simulate(scenario).requests)
