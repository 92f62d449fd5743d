"""Metrics against numpy on the same values written out in full, and against counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.recorder import Status
from sim.results.metrics import (
    attainment,
    inter_token_gaps,
    is_thin,
    mean_and_std,
    peak_concurrency,
    peak_token_rate,
    percentile,
    percentiles_over_time,
    sample,
)
from sim.scenario import SloTarget
from tests.cluster.helpers import FixedTimer, make_table, make_world, times_of, token_times_s
from tests.run.helpers import make_times

VALUES = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(st.tuples(VALUES, st.integers(1, 5)), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_of_counted_values_are_numpys_of_the_values_written_out(pairs, percent):
    values, counts = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    written_out = np.repeat(values, counts)
    found = percentile(sample(values, counts), percent)
    assert found == pytest.approx(np.percentile(written_out, percent), rel=1e-14, abs=1e-300)


@given(st.lists(st.tuples(VALUES, st.integers(1, 5)), min_size=1, max_size=40))
def test_mean_and_deviation_of_counted_values_are_numpys_of_the_population(pairs):
    values, counts = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    written_out = np.repeat(values, counts)
    mean, std = mean_and_std(sample(values, counts))
    assert mean == pytest.approx(np.mean(written_out), rel=1e-12)
    assert std == pytest.approx(np.std(written_out), rel=1e-9, abs=1e-6)


def test_a_percentile_is_thin_with_fewer_than_ten_samples_above_it():
    assert is_thin(999, 99)
    assert not is_thin(1000, 99)
    assert not is_thin(100, 90)
    assert is_thin(99, 90)


def test_pooled_gaps_are_the_differences_of_all_token_times():
    """A busy little world with chunked prompts, so that step times and gaps differ."""
    rng = np.random.default_rng(3)
    table = make_table(
        np.sort(rng.uniform(0, 3, 60)), prompt=rng.integers(1, 200, 60), output=rng.integers(1, 40, 60)
    )
    timer = FixedTimer(lambda shape: 0.01 + 0.001 * shape.num_tokens)
    world = make_world(table, timer, max_num_batched_tokens=64, max_num_seqs=8, num_replicas=2, num_blocks=24)
    world.run()
    assert sum(world.recorder.requests.num_preemptions) > 0
    counted = np.arange(60) % 3 > 0
    gaps = [np.diff(token_times_s(world, i)) for i in np.flatnonzero(counted)]
    found = inter_token_gaps(world.recorder, world.recorder.token_times(), counted)
    np.testing.assert_array_equal(np.repeat(found.values, found.counts), np.sort(np.concatenate(gaps)))
    assert [len(token_times_s(world, i)) for i in range(60)] == table.output_tokens.tolist()


def test_peaks_use_one_second_buckets_from_the_first_start():
    """Requests 0 and 1 run 0.5 … 3.5 s; bucket 0 is 0.5 … 1.5 s. Tokens come at 1.5, 2.5 and 3.5: two in each
    of the buckets 1, 2, 3."""
    world = make_world(make_table([0.5, 0.5], output=3), FixedTimer(1.0))
    world.run()
    times = times_of(world)
    assert peak_concurrency(times) == 2
    assert peak_token_rate(world.recorder, world.recorder.token_times(), times) == 2.0


def test_a_request_counts_in_every_second_it_touches_so_the_peak_can_exceed_the_limit():
    """One at a time, half a second each: two of them touch the first second."""
    world = make_world(make_table([0.0, 0.0, 0.0]), FixedTimer(0.4), max_concurrency=1)
    world.run()
    assert peak_concurrency(times_of(world)) == 3


def test_joint_attainment_counts_those_who_meet_every_target():
    times = make_times(ttft_s=[0.1, 0.1, 2.0, 2.0], tpot_s=[0.02, 0.2, 0.02, 0.2])
    found = attainment(times, [SloTarget("ttft", 1.0, 99.0), SloTarget("tpot", 0.05, 99.0)])
    assert found.by_target == (0.5, 0.5)
    assert found.joint == 0.25
    assert found.num_good == 1


def test_tpot_of_a_single_token_meets_every_limit():
    times = make_times(ttft_s=[0.1], tpot_s=[0.0], output_tokens=1)
    assert np.isnan(times.tpot_s[0])
    assert attainment(times, [SloTarget("tpot", 1e-9, None)]).joint == 1.0


def test_rejected_requests_miss_every_target():
    times = make_times(ttft_s=[0.1, 0.1], tpot_s=[0.01, 0.01], status=[Status.FINISHED, Status.REJECTED])
    assert attainment(times, [SloTarget("ttft", 1.0, 99.0)]).joint == 0.5


def test_a_request_in_flight_is_judged_only_once_it_has_missed():
    """At the horizon of 10 s request 1 has waited 9 s for its first token and request 2 half a second."""
    times = make_times(
        arrival_s=[0.0, 1.0, 9.5],
        ttft_s=[0.1, np.nan, np.nan],
        tpot_s=[0.01, np.nan, np.nan],
        status=[Status.FINISHED, Status.IN_FLIGHT, Status.IN_FLIGHT],
        end_s=10.0,
    )
    found = attainment(times, [SloTarget("ttft", 1.0, 99.0)])
    assert (found.joint, found.num_judged) == (0.5, 2)


def test_percentiles_over_time_weigh_by_time():
    """3 s with no block, 6 s with 10 blocks, 1 s with 20."""
    time_s = np.zeros(21)
    time_s[[0, 10, 20]] = [3.0, 6.0, 1.0]
    assert percentiles_over_time(time_s, (25, 50, 90, 95, 100)) == [0, 10, 10, 20, 20]


def test_peaks_of_a_run_that_is_idle_for_thirty_years_take_no_memory_for_the_idle_seconds():
    world = make_world(make_table([0.5, 0.5, 9e8], output=3), FixedTimer(1.0))
    world.run()
    times = times_of(world)
    assert peak_concurrency(times) == 2
    assert peak_token_rate(world.recorder, world.recorder.token_times(), times) == 2.0
