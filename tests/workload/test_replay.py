"""A replayed trace may be cut, scaled and repaired, and the repairs are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.workload.helpers import gaps_s, replay

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
FIVE = HEADER + "100,1,1\n101,2,1\n103,3,1\n106,4,1\n110,5,1\n"


def test_time_starts_at_the_first_row(tmp_path: Path) -> None:
    assert replay(tmp_path, FIVE).table.arrival_s.tolist() == [0, 1, 3, 6, 10]


def test_time_and_rate_scale_in_opposite_ways(tmp_path: Path) -> None:
    assert replay(tmp_path, FIVE, time_scale=2).table.arrival_s.tolist() == [0, 2, 6, 12, 20]
    assert replay(tmp_path, FIVE, rate_scale=2).table.arrival_s.tolist() == [0, 0.5, 1.5, 3, 5]


def test_a_rate_may_be_asked_for(tmp_path: Path) -> None:
    """Mean gap 2.5 s; at 4 requests/s it must be 0.25 s."""
    table = replay(tmp_path, FIVE, rate_per_s=4).table
    assert table.arrival_s == pytest.approx([0, 0.1, 0.3, 0.6, 1.0])
    assert gaps_s(table).mean() == pytest.approx(1 / 4)


def test_a_window_starts_its_own_clock(tmp_path: Path) -> None:
    table = replay(tmp_path, FIVE, start_s=2, end_s=10).table
    assert table.prompt_tokens.tolist() == [3, 4]
    assert table.arrival_s.tolist() == [1, 4]


def test_the_first_requests_may_be_enough(tmp_path: Path) -> None:
    assert replay(tmp_path, FIVE, num_requests=2).table.prompt_tokens.tolist() == [1, 2]
    assert len(replay(tmp_path, FIVE, num_requests=99).table) == 5


def test_window_limit_and_rate_go_together(tmp_path: Path) -> None:
    table = replay(tmp_path, FIVE, start_s=1, num_requests=3, rate_per_s=1).table
    assert table.prompt_tokens.tolist() == [2, 3, 4]
    assert table.arrival_s == pytest.approx([0, 0.8, 2.0])


def test_rows_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    workload = replay(tmp_path, HEADER + "5,1,1\n9,2,1\n3,3,1\n9,4,1\n8,5,1\n")
    assert workload.table.prompt_tokens.tolist() == [3, 1, 5, 2, 4]
    assert workload.table.arrival_s.tolist() == [0, 2, 5, 6, 6]
    assert workload.notes == [
        "not in order of time: 2 of 5 rows come before the row above them, the first at line 4; sorted",
        "1 requests arrive at the very time of the one before them; kept in file order",
    ]


def test_rows_in_order_need_no_repair(tmp_path: Path) -> None:
    assert replay(tmp_path, FIVE).notes == []


def test_ticks_are_spread_over_their_own_length(tmp_path: Path) -> None:
    """Times quantised to 3,000 ms, some of them a millisecond early, as Mooncake's are."""
    rows = [
        f'{{"timestamp": {3000 * (k // 20) - (k % 20 == 7)}, "input_length": {k + 1}, "output_length": 1}}'
        for k in range(20, 20_020)
    ]
    workload = replay(tmp_path, "\n".join(rows), name="t.jsonl", spread_ticks_s=3)
    times = workload.table.arrival_s
    order = workload.table.prompt_tokens
    assert np.all(np.diff(times) >= 0)
    assert np.array_equal(np.floor(times / 3), (order - 1) // 20 - 1)
    assert stats.kstest(times % 3, "uniform", args=(0, 3)).pvalue > 0.001
    assert gaps_s(workload.table).std() / gaps_s(workload.table).mean() == pytest.approx(1.0, abs=0.05)
    assert workload.notes[-1] == "times spread at random over ticks of 3 s"


def test_a_trace_may_be_offered_through_a_client_cap(tmp_path: Path) -> None:
    workload = replay(tmp_path, FIVE, max_concurrency=2)
    assert (workload.loop, workload.max_concurrency) == ("open", 2)


def test_a_long_trace_comes_in_pieces_that_fit_together(tmp_path: Path) -> None:
    count = 150_000
    lines = [f"{k * 0.5},{k % 100 + 1},{k % 7 + 1},{'abc'[k // 60_000]}" for k in range(count)]
    table = replay(tmp_path, HEADER.replace("\n", ",class\n") + "\n".join(lines)).table
    assert len(table) == count
    assert np.array_equal(table.prompt_tokens, np.arange(count) % 100 + 1)
    assert np.array_equal(table.arrival_s, np.arange(count) * 0.5)
    assert table.class_names == ("a", "b", "c")
    assert np.array_equal(table.class_index, np.arange(count) // 60_000)


def test_hashed_blocks_keep_to_their_rows_when_rows_are_sorted_and_cut(tmp_path: Path) -> None:
    rows = [(9000, [5, 6, 7]), (3000, [5, 8]), (6000, [1]), (0, [2, 3])]
    text = "\n".join(
        f'{{"timestamp": {time}, "input_length": {512 * len(ids)}, "output_length": 1, "hash_ids": {ids}}}'
        for time, ids in rows
    )
    table = replay(tmp_path, text, name="t.jsonl").table
    base = table.prompt_ranges(2)[0][0] - 512
    assert [table.prompt_ranges(index) for index in range(4)] == [
        ((base + 2 * 512, 1024),),
        ((base + 5 * 512, 512), (base + 8 * 512, 512)),
        ((base + 512, 512),),
        ((base + 5 * 512, 1536),),
    ]
