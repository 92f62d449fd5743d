"""Client classes and mixed workloads before they run: who belongs to whom, and what that brings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.features.helpers import build, faults_of, text_of

CHAT = {
    "kind": "poisson",
    "rate_per_s": 9,
    "num_requests": 900,
    "lengths": {"kind": "fixed", "prompt_tokens": 50, "output_tokens": 10},
}
BATCH = {
    "kind": "closed_loop",
    "num_requests": 100,
    "max_concurrency": 4,
    "lengths": {"kind": "fixed", "prompt_tokens": 2000, "output_tokens": 100},
}
MIX = {"kind": "mix", "workloads": {"chat": CHAT, "batch": BATCH}}
TWO_LENGTHS = {
    "kind": "mixture",
    "components": (
        {"name": "short", "weight": 3, "lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": 5}},
        {
            "name": "long",
            "weight": 1,
            "lengths": {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 50},
        },
    ),
}


def test_a_mix_has_the_requests_of_all_its_parts_in_order_of_arrival():
    workload = build(MIX)
    table = workload.table
    assert table.class_names == ("chat", "batch")
    assert np.bincount(table.class_index).tolist() == [900, 100]
    assert (np.diff(table.arrival_s) >= 0).all()
    assert set(table.prompt_tokens[table.class_index == 0]) == {50}
    assert set(table.prompt_tokens[table.class_index == 1]) == {2000}


def test_each_part_is_sent_by_a_client_of_its_own():
    workload = build(MIX)
    chat, batch = workload.clients
    assert (workload.table.class_index[chat.rows] == 0).all()
    assert (workload.table.class_index[batch.rows] == 1).all()
    assert (chat.max_concurrency, batch.max_concurrency) == (None, 4)
    assert workload.loop == "mixed"
    assert sorted([*chat.rows, *batch.rows]) == list(range(1000))


def test_no_part_shares_a_token_with_another():
    """Both have prefixes, and both number their requests from 0."""
    part = {
        "kind": "burst",
        "num_requests": 5,
        "lengths": {"kind": "fixed", "prompt_tokens": 40, "output_tokens": 9},
    }
    part |= {"prefixes": {"groups": 2, "prefix_tokens": 16}}
    table = build({"kind": "mix", "workloads": {"a": part, "b": part}}).table
    texts = [set(), set()]
    for row in range(len(table)):
        texts[table.class_index[row]] |= set(text_of(table.prompt_ranges(row)))
        start = table.output_start(row)
        texts[table.class_index[row]] |= set(range(start, start + 9))
    assert not texts[0] & texts[1]


def test_a_part_is_what_it_would_be_next_to_other_parts():
    """Common random numbers: what chat sends does not depend on what else is in the mix."""
    alone = build({"kind": "mix", "workloads": {"chat": CHAT}}).table
    beside = build(MIX).table
    rows = beside.class_index == 0
    assert (beside.arrival_s[rows] == alone.arrival_s).all()


def test_sessions_of_a_part_stay_sessions():
    talk = {**CHAT, "num_requests": 30, "sessions": {"turns": 3, "think_time_s": 1}}
    workload = build({"kind": "mix", "workloads": {"one": talk, "batch": BATCH, "two": talk}})
    table = workload.table
    later = np.flatnonzero(table.turn_after >= 0)
    assert len(later) == 2 * 30 * 2
    assert (table.session[later] == table.session[table.turn_after[later]]).all()
    assert (table.class_index[later] == table.class_index[table.turn_after[later]]).all()
    assert len(set(table.session[table.session >= 0])) == 60
    for row in later[:20].tolist():
        before = int(table.turn_after[row])
        prompt = text_of(table.prompt_ranges(before))
        assert text_of(table.prompt_ranges(row))[: len(prompt)] == prompt


def test_classes_of_a_part_come_behind_its_name():
    workload = build({"kind": "mix", "workloads": {"web": {**CHAT, "lengths": TWO_LENGTHS}, "batch": BATCH}})
    assert workload.table.class_names == ("web/short", "web/long", "batch")


def test_a_class_brings_its_priority_and_its_patience():
    workload = build(
        {
            **CHAT,
            "lengths": TWO_LENGTHS,
            "timeouts": {"total_s": 60},
            "classes": {"long": {"priority": 7, "timeouts": {"first_token_s": 5}}},
        }
    )
    table, long = workload.table, workload.table.class_index == 1
    assert long.mean() == pytest.approx(0.25, abs=0.05)
    assert set(table.priority[long]) == {7}
    assert set(table.priority[~long]) == {0}
    assert set(table.timeout_s[~long]) == {60}
    assert set(table.timeout_s[long]) == {np.inf}
    assert set(table.first_token_timeout_s[long]) == {5}
    assert set(table.first_token_timeout_s[~long]) == {np.inf}


def test_patience_has_the_distribution_that_was_asked_for():
    """Exponential with mean 20 s: a share of 1 - exp(-1) hangs up within 20 s."""
    workload = build(
        {**CHAT, "num_requests": 20_000, "timeouts": {"total_s": {"kind": "exponential", "mean_s": 20}}}
    )
    assert (workload.table.timeout_s <= 20).mean() == pytest.approx(1 - np.exp(-1), abs=0.01)


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        (
            {**CHAT, "lengths": TWO_LENGTHS, "classes": {"shrot": {"priority": 1}}},
            "workload.classes.shrot: no request is of this class; there are short, long; did you mean "
            "'short'?",
        ),
        (
            {**CHAT, "lengths": TWO_LENGTHS, "classes": {"short": {"priorty": 1}}},
            "workload.classes.short.priorty: unknown field; did you mean 'priority'?",
        ),
        (
            {**MIX, "classes": {"chat": {"slo": "ttft_p99=1"}}},
            "workload.classes.chat.slo.ttft_p99: '1' is no duration; write a number and a unit, such as 1s "
            "or 40ms",
        ),
        (
            {"kind": "mix", "workloads": {"chat": {**CHAT, "ignore_eos": True}}},
            "workload.workloads.chat.ignore_eos: holds for all parts alike; give workload.ignore_eos",
        ),
        (
            {"kind": "mix", "workloads": {"chat": {**CHAT, "temperature": 0}}},
            "workload.workloads.chat.temperature: holds for all parts alike; give workload.temperature",
        ),
        (
            {"kind": "mix", "workloads": {"chat": {**CHAT, "rate_per_s": 0}}},
            "workload.workloads.chat.rate_per_s: must be greater than 0.0 (got 0)",
        ),
        (
            {"kind": "mix", "workloads": {"chat": {**CHAT, "kind": "gamma", "burstines": 1}}},
            "workload.workloads.chat.burstiness: is missing",
        ),
        (
            {"kind": "mix", "workloads": {"chat": {**CHAT, "path": "x"}}},
            "workload.workloads.chat.path: is no field of kind poisson; it belongs to trace",
        ),
    ],
)
def test_a_mix_that_cannot_be_is_refused_with_its_place(workload, fault):
    assert fault in faults_of(workload)


def test_a_trace_that_cannot_be_read_is_named_by_its_part():
    workload = {"kind": "mix", "workloads": {"old": {"kind": "trace", "path": "nowhere.csv"}}}
    assert faults_of(workload)[0].startswith("workload.workloads.old.path: no such file")
