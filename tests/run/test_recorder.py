"""The recorder: many rows at once equal rows one by one, and runs open and close with the tokens."""

from __future__ import annotations

import numpy as np

from sim.cluster.recorder import StepLog, StepRuns


def decode_steps(n: int) -> list[tuple[float, ...]]:
    """Rows of steps of one batch of decodes."""
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.uniform(0.01, 0.02, n)).tolist()
    blocks, bounds = rng.integers(0, 6, (2, n)).tolist(), rng.integers(0, 6, n).tolist()
    starts = [0.0, *ends[:-1]]
    return [
        (start, end, 7, 0, 0, 8, 2, used, cached, 0, bound)
        for start, end, used, cached, bound in zip(starts, ends, *blocks, bounds, strict=True)
    ]


def append(log: StepLog, row: tuple[float, ...]) -> None:
    start_s, end_s, *counts = row
    log.append(start_s, end_s, tuple(counts))


def extend(log: StepLog, rows: list[tuple[float, ...]]) -> None:
    starts, ends, *_, used, cached, _, bounds = zip(*rows, strict=True)
    log.extend_decodes(*map(list, (starts, ends, used, cached, bounds)), (7, 8, 2))


def test_many_steps_at_once_equal_steps_one_by_one_to_the_last_bit():
    rows = decode_steps(20_000)
    one_by_one, at_once = StepLog(warmup_s=3.0), StepLog(warmup_s=3.0)
    for row in rows:
        append(one_by_one, row)
    for first in range(0, len(rows), 1_700):
        extend(at_once, rows[first : first + 1_700])
    for one, other in zip(one_by_one.kept(), at_once.kept(), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(one_by_one.totals(), at_once.totals(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_pieces_keep_their_counts_wherever_the_buffers_are_emptied():
    rng, log, rows = np.random.default_rng(2), StepLog(), []
    while len(rows) < 30_000:
        start, n, counts = float(len(rows)), int(rng.integers(1, 900)), rng.integers(0, 90, 3).tolist()
        if n < 300:
            rows.append((start, start + 0.5, *counts, 1, 2, 3, 4, n % 3, 5))
            append(log, rows[-1])
            continue
        piece = [
            (start + i, start + i + 0.5, counts[0], 0, 0, *counts[1:], i, n - i, 0, i % 6) for i in range(n)
        ]
        starts, ends, *_, used, cached, _, bounds = map(list, zip(*piece, strict=True))
        log.extend_decodes(starts, ends, used, cached, bounds, tuple(counts))
        rows += piece
    start_s, end_s, kept = log.kept()
    np.testing.assert_array_equal(np.column_stack((start_s, end_s, kept)), np.array(rows))


def test_without_kept_steps_end_times_and_totals_are_the_same():
    rows = decode_steps(20_000)
    lean, full = StepLog(keep=False), StepLog(keep=True)
    extend(lean, rows)
    extend(full, rows)
    assert len(lean.kept()[0]) == 0
    np.testing.assert_array_equal(lean.end_s(), full.end_s())
    assert lean.totals().busy_s == full.totals().busy_s


def test_totals_count_steps_that_began_after_the_warm_up():
    log = StepLog(warmup_s=1.5)
    for i in range(4):
        log.append(float(i), i + 1.0, (10, 0, 0, 1, 0, 5, 0, 1, 0))
    assert log.totals().num_steps == 2
    assert log.totals().decode_tokens == 20
    assert log.totals().num_preemptions == 2
    assert log.totals().time_by_used_blocks_s[5] == 2.0


def test_overlapping_steps_of_a_pipeline_count_the_time_that_passes_once():
    log = StepLog()
    log.append(0.0, 2.0, (1, 0, 0, 1, 0, 1, 0, 0, 0))
    log.append(1.0, 3.0, (1, 0, 0, 1, 0, 1, 0, 0, 0))
    assert log.totals().busy_s == 3.0


def test_a_run_lasts_while_every_step_gives_a_token():
    runs = StepRuns()
    for step, served in enumerate(([7], [7, 8], [8], [8, 7])):
        if not runs.on_step(step, served):
            runs.close_others(step, {*served})
    runs.close(8, 4)
    runs.close_all(4)
    request, first, steps = runs.columns()
    assert list(zip(request.tolist(), first.tolist(), steps.tolist(), strict=True)) == [
        (7, 0, 2),
        (8, 1, 3),
        (7, 3, 1),
    ]


def test_closing_a_request_without_tokens_records_nothing():
    runs = StepRuns()
    runs.close(3, 1)
    assert len(runs.columns()[0]) == 0
