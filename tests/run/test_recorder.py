"""The recorder: many rows at once equal rows one by one, and runs open and close with the tokens."""

from __future__ import annotations

import numpy as np

from sim.recorder import STEP_FIELDS, StepLog, TokenRuns


def make_rows(n: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 6, (n, len(STEP_FIELDS))).astype(float)
    rows[:, 1] = np.cumsum(rng.uniform(0.01, 0.02, n))
    rows[:, 0] = np.concatenate(([0.0], rows[:-1, 1]))
    return rows


def test_many_steps_at_once_equal_steps_one_by_one():
    rows = make_rows(20_000)
    one_by_one, at_once = StepLog(warmup_s=3.0), StepLog(warmup_s=3.0)
    for row in rows.tolist():
        one_by_one.append(tuple(row))
    for part in np.array_split(rows, 7):
        at_once.extend(part.ravel().tolist())
    for one, other in zip(one_by_one.kept(), at_once.kept(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert one_by_one.totals().num_preemptions == at_once.totals().num_preemptions
    np.testing.assert_allclose(
        one_by_one.totals().time_by_bound_s, at_once.totals().time_by_bound_s, rtol=1e-12
    )


def test_without_kept_steps_end_times_and_totals_are_the_same():
    rows = make_rows(20_000)
    lean, full = StepLog(keep=False), StepLog(keep=True)
    lean.extend(rows.ravel().tolist())
    full.extend(rows.ravel().tolist())
    assert len(lean.kept()[0]) == 0
    np.testing.assert_array_equal(lean.end_s(), full.end_s())
    assert lean.totals().busy_s == full.totals().busy_s


def test_totals_count_steps_that_began_after_the_warm_up():
    log = StepLog(warmup_s=1.5)
    for i in range(4):
        log.append((float(i), i + 1.0, 10, 0, 0, 1, 0, 5, 0, 1, 0))
    assert log.totals().num_steps == 2
    assert log.totals().decode_tokens == 20
    assert log.totals().num_preemptions == 2
    assert log.totals().time_by_used_blocks_s[5] == 2.0


def test_overlapping_steps_of_a_pipeline_count_the_time_that_passes_once():
    log = StepLog()
    log.append((0.0, 2.0, 1, 0, 0, 1, 0, 1, 0, 0, 0))
    log.append((1.0, 3.0, 1, 0, 0, 1, 0, 1, 0, 0, 0))
    assert log.totals().busy_s == 3.0


def test_a_run_lasts_while_every_step_gives_a_token():
    runs = TokenRuns()
    runs.on_step(0, [7])
    runs.on_step(1, [7, 8])
    runs.on_step(2, [8])
    runs.on_step(3, [8, 7])
    runs.close(8, 4)
    runs.close_all(4)
    request, first, steps = runs.columns()
    assert list(zip(request.tolist(), first.tolist(), steps.tolist(), strict=True)) == [
        (7, 0, 2),
        (8, 1, 3),
        (7, 3, 1),
    ]


def test_closing_a_request_without_tokens_records_nothing():
    runs = TokenRuns()
    runs.close(3, 1)
    assert len(runs.columns()[0]) == 0
