"""Sessions before they run: which turns there are, how their prompts grow, what a trace says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.features.helpers import build, faults_of, text_of

BURST = {"kind": "burst", "num_requests": 3}
MARGINALS = {
    "kind": "marginals",
    "prompt": {"kind": "uniform", "tokens": (5, 60)},
    "output": {"kind": "uniform", "tokens": (1, 40)},
}


def test_a_prompt_is_everything_said_before_and_the_new_message():
    """100 new tokens a turn, 20 answered: prompts of 100, 220 and 340 tokens, each a continuation."""
    table = build({**BURST, "num_requests": 1, "sessions": {"turns": 3}}).table
    assert table.prompt_tokens.tolist() == [100, 220, 340]
    assert table.turn_after.tolist() == [-1, 0, 1]
    for later in (1, 2):
        before = later - 1
        said = text_of(table.prompt_ranges(before))
        said += range(table.output_start(before), table.output_start(before) + 20)
        assert text_of(table.prompt_ranges(later))[: len(said)] == said


@pytest.mark.parametrize("within_prompt", [False, True])
def test_prompts_grow_likewise_behind_a_shared_prefix(within_prompt):
    table = build(
        {
            **BURST,
            "num_requests": 20,
            "lengths": MARGINALS,
            "sessions": {
                "turns": {"kind": "uniform", "range": (1, 5)},
                "next_message": {"kind": "fixed", "tokens": 7},
            },
            "prefixes": {"groups": 3, "prefix_tokens": 32, "share": 0.7, "within_prompt": within_prompt},
        }
    ).table
    later = np.flatnonzero(table.turn_after >= 0)
    assert len(later) > 20
    for row in later.tolist():
        before = int(table.turn_after[row])
        assert table.session[row] == table.session[before]
        said = text_of(table.prompt_ranges(before))
        said += range(
            table.output_start(before), table.output_start(before) + int(table.output_tokens[before])
        )
        prompt = text_of(table.prompt_ranges(row))
        assert prompt[: len(said)] == said
        assert len(prompt) - len(said) == 7
        assert len(prompt) == table.prompt_tokens[row]


def test_two_sessions_have_nothing_in_common():
    table = build({**BURST, "sessions": {"turns": 4}}).table
    texts = {int(session): set() for session in table.session}
    for row in range(len(table)):
        texts[int(table.session[row])] |= set(text_of(table.prompt_ranges(row)))
    assert len(set.union(*texts.values())) == sum(map(len, texts.values()))


def test_rows_are_in_the_order_of_the_earliest_time_they_can_come():
    table = build(
        {
            "kind": "poisson",
            "rate_per_s": 1,
            "num_requests": 200,
            "sessions": {"turns": 4, "think_time_s": {"kind": "exponential", "mean_s": 3}},
        }
    ).table
    assert len(table) == 800
    assert (np.diff(table.arrival_s) >= 0).all()
    later = table.turn_after >= 0
    assert (table.turn_after[later] < np.flatnonzero(later)).all()
    gap_s = table.arrival_s[later] - table.arrival_s[table.turn_after[later]]
    assert gap_s == pytest.approx(table.think_s[later])
    assert gap_s.mean() == pytest.approx(3, rel=0.1)
    assert not table.think_s[~later].any()


def test_the_number_of_turns_has_the_mean_that_was_asked_for():
    """Geometric with mean 5: variance 5 · 4, so 4,000 sessions are within 3 standard errors of 0.07."""
    table = build(
        {**BURST, "num_requests": 4000, "sessions": {"turns": {"kind": "geometric", "mean": 5}}}
    ).table
    turns = np.bincount(table.session)
    assert turns.mean() == pytest.approx(5, abs=0.21)
    assert turns.var() == pytest.approx(20, rel=0.15)


def test_a_session_ends_before_the_turn_that_would_not_fit():
    """120 tokens a turn: the third turn ends with 360, the fourth would need 480."""
    workload = build({**BURST, "sessions": {"turns": 9}}, max_model_len=400)
    assert np.bincount(workload.table.session).tolist() == [3, 3, 3]
    assert workload.notes == [
        "3 of 3 sessions end early, before a turn that would exceed max_model_len 400: 18 turns left out"
    ]


def test_a_first_turn_that_does_not_fit_is_rejected_alone():
    workload = build({**BURST, "sessions": {"turns": 9}}, max_model_len=100)
    assert workload.table.rejected.tolist() == [True] * 3


def test_the_turns_of_a_session_are_of_one_class():
    lengths = {
        "kind": "mixture",
        "components": (
            {
                "name": "chat",
                "weight": 1,
                "lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": 5},
            },
            {
                "name": "code",
                "weight": 1,
                "lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 9},
            },
        ),
    }
    table = build({**BURST, "num_requests": 50, "lengths": lengths, "sessions": {"turns": 3}}).table
    for session in range(50):
        assert len(set(table.class_index[table.session == session])) == 1
    assert set(table.class_index) == {0, 1}


def test_more_sessions_leave_the_first_ones_as_they_are():
    """Common random numbers: turns, lengths and thinking of a session do not depend on how many follow."""

    def first_ten(count: int) -> list[tuple[int, int, int]]:
        table = build(
            {
                **BURST,
                "num_requests": count,
                "lengths": MARGINALS,
                "sessions": {"turns": 4, "think_time_s": {"kind": "lognormal", "median_s": 2, "sigma": 1}},
            }
        ).table
        rows = np.flatnonzero(table.session < 10)
        return sorted(
            zip(
                table.session[rows].tolist(),
                table.prompt_tokens[rows].tolist(),
                table.arrival_s[rows].round(9).tolist(),
                strict=True,
            )
        )

    assert first_ten(10) == first_ten(300)


# --- traces -------------------------------------------------------------------------------------------------

TRACE = """\
arrival_s,prompt_tokens,output_tokens,session
0.0,100,20,a
1.0,50,5,
2.0,300,10,b
3.0,150,20,a
4.0,100,20,b
5.0,170,20,a
"""


def test_a_trace_with_sessions_is_followed_only_on_request(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    plain = build({"kind": "trace", "path": str(path)}).table
    assert plain.turn_after is None
    assert plain.session.tolist() == [0, -1, 1, 0, 1, 0]


def test_followed_sessions_of_a_trace_repeat_what_was_said(tmp_path: Path):
    """a's second prompt has 150 ≥ 100 + 20 tokens and its third 170 ≥ 150 + 20: they go on. b's second has
    100 tokens, less than what was said: a new text, but still sent after the answer.
    """
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    table = build({"kind": "trace", "path": str(path), "follow_sessions": True}).table
    assert table.turn_after.tolist() == [-1, -1, -1, 0, 2, 3]
    first, second, third = (text_of(table.prompt_ranges(row)) for row in (0, 3, 5))
    assert second[:100] == first
    assert second[100:120] == list(range(table.output_start(0), table.output_start(0) + 20))
    assert third[:150] == second
    others = [set(text_of(table.prompt_ranges(row))) for row in (0, 1, 2, 4)]
    assert len(set.union(*others)) == sum(map(len, others))


# --- faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        (
            {**BURST, "sessions": {"turns": 0}},
            "workload.sessions.turns: must be from 1 to 10000 turns (got 0)",
        ),
        (
            {**BURST, "sessions": {"turns": 2, "think_time_s": -1}},
            "workload.sessions.think_time_s: must be from 0 to 1e+09 seconds (got -1)",
        ),
        (
            {**BURST, "sessions": {"turns": {"kind": "geometric", "mean": 0.5}}},
            "workload.sessions.turns.mean: must be at least 1.0 (got 0.5)",
        ),
        (
            {**BURST, "sessions": {"turns": {"kind": "poisson", "mean": 2}}},
            "workload.sessions.turns: 'poisson' is not one of fixed, uniform, geometric",
        ),
        (
            {**BURST, "sessions": {"turns": 2}, "distinct_prompts": 2},
            "workload.sessions: not together with distinct_prompts; give one of distinct_prompts, sessions",
        ),
        (
            {
                "kind": "trace",
                "path": "t.csv",
                "follow_sessions": True,
                "prefixes": {"prefix_tokens": 10},
            },
            "workload.prefixes: not together with follow_sessions",
        ),
    ],
)
def test_a_session_that_cannot_be_is_refused_with_its_place(workload, fault):
    assert faults_of(workload) == [fault]
