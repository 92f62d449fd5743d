"""Intervals worked out by hand, and what they say when there is nothing to say."""

from __future__ import annotations

from math import isfinite, isnan, sqrt

import numpy as np
import pytest

from sim.statistics import (
    PairedDifferences,
    Trust,
    batch_means,
    jackknife_interval,
    mser5,
    paired_difference,
    pairs_to_show,
    replication_interval,
    replications_needed,
    sign_test,
    trials_to_show,
    trust_in_percentile,
    two_stage_interval,
    wilson_interval,
)
from tests.statistics.queues import mean_wait, waits


def test_three_replications_by_hand():
    interval = replication_interval([1.0, 2.0, 3.0])
    half = 4.302653 / sqrt(3)  # the table of t has 4.303 for two degrees of freedom
    assert interval.estimate == 2.0
    assert interval.low == pytest.approx(2 - half, abs=1e-6)
    assert interval.relative == pytest.approx(half / 2, abs=1e-6)


def test_one_replication_has_no_interval_and_none_has_nothing():
    one = replication_interval([5.0])
    assert one.estimate == 5.0
    assert isnan(one.low)
    assert not one.holds(5.0)
    assert isnan(replication_interval([]).estimate)


def test_values_that_are_all_the_same_say_nothing_about_their_error():
    same = replication_interval([0.1] * 7)
    assert same.estimate == pytest.approx(0.1)
    assert isnan(same.low)
    assert isnan(replication_interval([0.3, 0.1 + 0.2]).low)  # the same but for rounding
    assert isnan(jackknife_interval(4.0, [4.0, 4.0, 4.0]).low)
    later = two_stage_interval([2.0] * 10 + [1.0, 3.0], 10)
    assert later.low < 2.0 < later.high


def test_a_replication_without_a_value_is_not_left_out_silently():
    assert isnan(replication_interval([1.0, float("nan"), 2.0]).estimate)


def test_pairs_show_a_difference_that_the_spread_would_hide():
    first = np.array([10.0, 50.0, 90.0, 20.0])
    paired = paired_difference(first, first + np.array([1.0, 1.1, 0.9, 1.0]))
    assert paired.is_above_or_below_zero
    assert not paired_difference(first, first[::-1]).is_above_or_below_zero
    with pytest.raises(ValueError, match="equally many"):
        paired_difference([1.0], [1.0, 2.0])


def test_pairs_that_differ_by_the_same_have_no_interval_however_the_values_move():
    first = np.array([10.2, 11.2, 13.7, 20.9])
    assert isnan(paired_difference(first, first + 0.1).low)
    same = PairedDifferences.of(first, first + 0.1)
    assert same.num_distinct == 1
    assert (same.lower, same.higher) == (0, 4)
    assert not same.shows()
    assert set(PairedDifferences.of(first, first).values) == {0.0}


def test_two_different_differences_have_no_interval_and_three_have():
    few = PairedDifferences.of([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 6.0])
    assert isnan(few.interval().low)
    enough = PairedDifferences.of([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.1, 6.0])
    assert isfinite(enough.interval().low)
    assert enough.interval() == paired_difference([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.1, 6.0])


def test_signs_by_hand():
    assert sign_test(0, 5) == 2 / 32
    assert sign_test(6, 0) == 2 / 64
    assert sign_test(1, 8) == 2 * (1 + 9) / 512
    assert sign_test(3, 3) == sign_test(0, 0) == 1.0
    assert (pairs_to_show(), pairs_to_show(1 - 0.05 / 16)) == (6, 10)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99, 1 - 0.05 / 300])
def test_the_fewest_pairs_that_show_a_direction_are_just_enough(level):
    few = pairs_to_show(level)
    assert sign_test(0, few) <= 1 - level + 1e-12 < sign_test(0, few - 1)
    assert PairedDifferences((1.0,) * few).shows(level)
    assert not PairedDifferences((1.0,) * (few - 1)).shows(level)


def test_wilson_by_hand_and_at_the_ends():
    # Newcombe (1998), table I: 81 of 263 gives 0.2553 to 0.3662.
    interval = wilson_interval(81, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)
    # The same table: 0 of 20 gives 0 to 0.1611.
    none = wilson_interval(0, 20)
    assert (none.low, round(none.high, 4)) == (0.0, 0.1611)
    assert wilson_interval(20, 20).high == 1.0
    assert isnan(wilson_interval(0, 0).estimate)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_the_fewest_trials_that_show_a_share_are_just_enough(share):
    few = trials_to_show(share)
    assert wilson_interval(few, few).low >= share > wilson_interval(few - 1, few - 1).low
    with pytest.raises(ValueError, match="no share"):
        wilson_interval(3, 2)


def test_batches_of_a_constant_have_no_width():
    interval = batch_means(np.full(1000, 3.0))
    assert (interval.low, interval.high) == (3.0, 3.0)


def test_a_run_too_short_for_its_own_memory_has_no_interval():
    walk = np.cumsum(np.random.default_rng(0).normal(size=2000))  # never forgets
    assert isnan(batch_means(walk).low)
    assert isnan(batch_means([1.0, 2.0, 3.0]).low)


def test_warm_up_of_a_step_is_where_it_ends():
    noise = np.random.default_rng(1).normal(size=3000)
    series = noise + np.where(np.arange(3000) < 400, 20.0, 0.0)
    found = mser5(series)
    assert found.length == 400
    assert found.is_steady


def test_a_queue_that_starts_full_is_cut_and_then_right():
    """M/M/1 at 0.7 that starts with 300 services of work: about 1,000 customers until it has drained."""
    runs = waits(7, 40, 30_000, 0.7, first_wait=300.0)
    truth = mean_wait(0.7)
    cuts = [mser5(run) for run in runs]
    assert all(cut.is_steady for cut in cuts)
    assert 500 < np.median([cut.length for cut in cuts]) < 3000
    whole = np.mean([run.mean() for run in runs])
    cut_off = np.mean([run[cut.length :].mean() for run, cut in zip(runs, cuts, strict=True)])
    assert abs(whole - truth) > 1.0
    assert abs(cut_off - truth) < 0.1


def test_a_steady_series_keeps_nearly_everything():
    lengths = [mser5(run).length for run in waits(8, 40, 20_000, 0.5)]
    assert np.median(lengths) < 1000


def test_a_series_that_grows_for_ever_is_not_steady():
    noise = np.random.default_rng(2).normal(size=5000)
    assert not mser5(np.arange(5000) / 10 + noise).is_steady
    assert not mser5([1.0, 2.0, 3.0]).is_steady
    with pytest.raises(ValueError, match="not finite"):
        mser5([float("nan")] * 100)


def test_as_many_replications_as_stein_says():
    first = [9.0, 11.0] * 5  # mean 10, deviation 1.0541, t(9) = 2.2622
    wanted = 10 * 0.05 / 1.05
    assert replications_needed(first, 0.05) == np.ceil((2.262157 * np.std(first, ddof=1) / wanted) ** 2)
    assert replications_needed([2.0] * 10, 0.05) == 10
    assert replications_needed([-1.0, 1.0], 0.05) is None
    assert replications_needed([1.0, float("nan")], 0.05) is None


def test_the_width_comes_from_the_first_stage():
    values = [9.0, 11.0] * 5 + [10.0] * 90
    interval = two_stage_interval(values, 10)
    assert interval.half_width == pytest.approx(2.262157 * np.std(values[:10], ddof=1) / 10, rel=1e-6)


@pytest.mark.parametrize(
    ("size", "percent", "trust"),
    [
        (1000, 99, Trust.SOUND),
        (999, 99, Trust.THIN),
        (100, 99, Trust.THIN),
        (99, 99, Trust.NONE),
        (20, 50, Trust.SOUND),
        (0, 50, Trust.NONE),
    ],
)
def test_a_percentile_needs_values_above_it(size, percent, trust):
    assert trust_in_percentile(size, percent) is trust


def test_the_jackknife_of_a_mean_is_the_interval_over_replications():
    values = np.array([3.0, 5.0, 4.0, 8.0])
    without = [np.delete(values, index).mean() for index in range(4)]
    found, plain = jackknife_interval(values.mean(), without), replication_interval(values)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))
    assert isnan(jackknife_interval(3.0, []).low)
