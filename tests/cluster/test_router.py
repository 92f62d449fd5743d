"""Routing policies on replicas whose loads the test dictates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from scheduler import Request
from sim.cluster.router import ROUTERS
from tests.cluster.helpers import FixedTimer, make_table, make_world, times_of


@dataclass
class Loaded:
    num_outstanding: int


REQUEST = Request(0, ((0, 10),), 1)


def choices(kind: str, loads: list[int], n: int = 3000) -> Counter[int]:
    router = ROUTERS[kind](np.random.default_rng(0))
    replicas = [Loaded(load) for load in loads]
    return Counter(router.choose(REQUEST, replicas) for _ in range(n))


def test_round_robin_takes_turns_whatever_the_load():
    assert choices("round_robin", [9, 0, 0]) == {0: 1000, 1: 1000, 2: 1000}


def test_random_is_even():
    counts = choices("random", [9, 0, 0])
    assert all(900 < counts[i] < 1100 for i in range(3))


def test_least_outstanding_takes_the_first_of_the_least_loaded():
    assert choices("least_outstanding", [3, 1, 1]) == {1: 3000}


def test_power_of_two_never_takes_the_most_loaded_and_halves_by_rank():
    """Of 3 replicas with loads 0 < 1 < 2: the pair holds the least loaded in 2 of 3 draws, else the middle
    one wins."""
    counts = choices("power_of_two", [2, 0, 1])
    assert counts[0] == 0
    assert counts[1] / 3000 == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize("kind", sorted(ROUTERS))
def test_one_replica_gets_everything(kind):
    assert choices(kind, [5], n=10) == {0: 10}


def test_least_outstanding_levels_what_round_robin_does_not():
    """Every second request is long. Round robin sends all long ones to one replica."""
    table = make_table(np.arange(40) * 0.5, output=[20 if i % 2 else 1 for i in range(40)])
    waits = {}
    for kind in ("round_robin", "least_outstanding"):
        world = make_world(table, FixedTimer(1.0), router=kind, num_replicas=2, max_num_seqs=4)
        world.run()
        waits[kind] = times_of(world).ttft_s.mean()
    assert waits["least_outstanding"] < waits["round_robin"]
