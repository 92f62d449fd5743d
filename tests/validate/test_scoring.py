"""Errors of predictions: how they are counted, weighted and told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.scoring import (
    MetricError,
    held_out,
    is_saturated,
    score,
    summarize_errors,
    weighted_quantile,
)
from tests.validate.helpers import one_run


def compared(run_id: str, simulated: float, condition: str = "") -> MetricError:
    return MetricError(MeasuredRun(run_id), condition or run_id, "ttft_mean", 100.0, simulated)


def test_an_error_is_relative_to_what_was_measured_and_keeps_its_sign() -> None:
    assert compared("a", 110.0).error_percent == pytest.approx(10.0)
    assert compared("a", 80.0).error_percent == pytest.approx(-20.0)


def test_with_equal_weights_the_quantile_is_numpys() -> None:
    values = np.array([5.0, 1.0, 9.0, 2.0, 7.0])
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert weighted_quantile(values, np.ones(5), share) == pytest.approx(np.quantile(values, share))


def test_repeats_of_one_condition_share_one_vote() -> None:
    """Nine repeats at 1 % and three others at 5 %: over conditions the median is 5 %, over rows 1 %."""
    rows = [compared(f"again{i}", 101.0, "same") for i in range(9)] + [
        compared(f"other{i}", 105.0) for i in range(3)
    ]
    errors = summarize_errors(rows)
    assert errors.rows == 12
    assert errors.median == pytest.approx(5.0)


def test_bias_is_the_signed_median_and_the_worst_rows_come_first() -> None:
    errors = summarize_errors([compared("a", 90.0), compared("b", 98.0), compared("c", 130.0)])
    assert errors.bias == pytest.approx(-2.0)
    assert errors.median == pytest.approx(10.0)
    assert [c.run.run_id for c in errors.worst] == ["c", "a", "b"]


def test_only_what_is_measured_simulated_and_not_flagged_is_compared(tmp_path: Path) -> None:
    run = one_run(
        tmp_path,
        note="check: ttft; odd",
        ttft_mean_ms="50",
        tpot_mean_ms="10",
        e2e_mean_ms="500",
        completed="4",
    )
    found = score(
        run, {"ttft_mean_ms": 60.0, "tpot_mean_ms": 11.0, "completed": 4.0}, condition="x", saturated=True
    )
    assert [(c.metric, c.measured, c.simulated) for c in found] == [("tpot_mean", 10.0, 11.0)]


def test_throughput_says_whether_the_engine_or_the_load_set_it(tmp_path: Path) -> None:
    run = one_run(tmp_path, req_tput_rps="3")
    for saturated, name in ((True, "saturated_req_tput_rps"), (False, "open_loop_req_tput_rps")):
        (found,) = score(run, {"req_tput_rps": 3.0}, condition="x", saturated=saturated)
        assert found.metric == name


def test_a_run_that_keeps_up_with_its_load_is_not_saturated(tmp_path: Path) -> None:
    """100 requests over 50 s are 2/s; 1.95/s with the drain keeps up, 1.5/s does not."""
    keeps_up = one_run(tmp_path, load="poisson", rate_per_s="2", req_tput_rps="1.95")
    falls_behind = one_run(tmp_path, load="poisson", rate_per_s="2", req_tput_rps="1.5")
    assert not is_saturated(keeps_up, 100, 50.0)
    assert is_saturated(falls_behind, 100, 50.0)


@pytest.mark.parametrize("load", ["closed", "burst"])
def test_a_closed_loop_and_a_burst_always_run_at_the_limit(tmp_path: Path, load: str) -> None:
    assert is_saturated(one_run(tmp_path, load=load, max_concurrency="2", req_tput_rps="1"), 4, 0.0)


def test_twins_and_stages_of_one_experiment_are_held_out_together() -> None:
    for first, second in (
        ("x/agg_2rps/patched", "x/agg_2rps/vanilla"),
        ("y/13-general/s0", "y/13-general/s1"),
    ):
        assert held_out(first) == held_out(second)


def test_about_a_third_of_many_runs_is_held_out() -> None:
    share = np.mean([held_out(f"source/run{i}") for i in range(2000)])
    assert share == pytest.approx(1 / 3, abs=0.05)
