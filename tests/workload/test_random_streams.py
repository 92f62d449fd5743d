"""Randomness by name: the same seed gives the same numbers, whoever asks first."""

from __future__ import annotations

import numpy as np

from sim.random_streams import streams


def test_a_seed_and_a_name_fix_the_numbers() -> None:
    assert streams(5)("arrivals").random() == streams(5)("arrivals").random()
    assert streams(5)("arrivals").random() != streams(6)("arrivals").random()


def test_the_order_of_asking_does_not_matter() -> None:
    one, other = streams(1), streams(1)
    first = [one(name).random() for name in ("arrivals", "lengths", "replica.0")]
    second = [other(name).random() for name in ("replica.0", "lengths", "arrivals")]
    assert first == second[::-1]


def test_a_stream_goes_on_where_its_last_reader_left_it() -> None:
    stream, whole = streams(1), streams(1)("x").random(4)
    assert np.array_equal(np.concatenate([stream("x").random(2), stream("x").random(2)]), whole)


def test_streams_do_not_follow_one_another() -> None:
    names = ["arrivals", "lengths", "prefixes", "routing", *(f"replica.{index}" for index in range(20))]
    draws = np.array([streams(3)(name).standard_normal(2000) for name in names])
    correlations = np.corrcoef(draws)[np.triu_indices(len(names), k=1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(2000)
