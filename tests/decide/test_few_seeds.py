"""Few seeds that agree by luck: no interval without a width, no promise kept, no best cell because of it."""

from __future__ import annotations

from math import isnan

import numpy as np
import pandas as pd
import pytest

from sim import load_scenario
from sim.jobs.points import Outcome, Point
from sim.questions.size.promise import CLOSE, JOINT, MET, MISSED, Promise, judge
from sim.questions.sweep.findings import best_capacity, best_cell, capacities
from sim.questions.sweep.measures import interval_of
from sim.scenario.slo import parse_slo
from sim.statistics import wilson_interval

RATE = "workload.rate_per_s"


def seeds(*shares: float, judged: int = 200, **more: list[float]) -> list[dict[str, float]]:
    """The numbers of a run for each of these shares; throughput moves with the seed unless it is given."""
    moved = {"request_throughput": [8.0 + seed for seed in range(len(shares))]} | more
    columns = {name: values[: len(shares)] for name, values in moved.items()}
    return [
        {
            JOINT: share,
            "slo_judged_requests": judged,
            **{name: values[at] for name, values in columns.items()},
        }
        for at, share in enumerate(shares)
    ]


# --- shares of requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [(0.98, 0.98), (0.98, 0.98, 0.98, 0.98, 0.98)])
def test_equal_shares_of_different_runs_have_the_interval_of_all_their_requests(shares):
    found = interval_of(JOINT, seeds(*shares), None)
    of_all = wilson_interval(round(0.98 * 200 * len(shares)), 200 * len(shares))
    assert (found.low, found.high) == (of_all.low, of_all.high)


def test_shares_that_nearly_agree_are_no_surer_than_the_number_of_requests_allows():
    near = interval_of(JOINT, seeds(0.980, 0.981), None)
    of_all = wilson_interval(392, 400)
    assert near.low <= of_all.low
    assert near.high >= of_all.high
    apart = interval_of(JOINT, seeds(0.95, 0.99), None)
    assert (apart.low, apart.high) == (pytest.approx(0.97 - 12.7062 * 0.02, abs=1e-4), 1.0)


def test_three_different_shares_have_the_interval_over_seeds():
    found = interval_of(JOINT, seeds(0.965, 0.97, 0.975), None)
    assert found.half_width == pytest.approx(4.302653 * 0.005 / np.sqrt(3), rel=1e-6)


def test_where_seeds_change_nothing_there_is_no_interval():
    same = seeds(0.9, 0.9, 0.9, request_throughput=[8.0, 8.0, 8.0])
    assert isnan(interval_of(JOINT, same, None).low)
    assert isnan(interval_of("request_throughput", same, None).low)


# --- what size promises -------------------------------------------------------------------------------------


def judged(wanted: float, *shares: float, prompts: int = 200, e2e_ms: float | None = None):
    """The judgement of runs with these shares; their latency moves with the seed unless it is given."""
    point = Point(load_scenario("quickstart"), {})
    runs = [
        {
            "completed": prompts,
            "slo_attainment": share,
            "slo_judged_requests": prompts,
            "mean_e2el_ms": 100.0 + at if e2e_ms is None else e2e_ms,
        }
        for at, share in enumerate(shares)
    ]
    return judge(Promise({}, {JOINT: wanted}), [Outcome(point, "", summary) for summary in runs])


def test_two_seeds_with_the_same_share_neither_keep_nor_break_a_promise_near_it():
    assert judged(0.975, 0.98, 0.98).verdict == CLOSE
    assert judged(0.985, 0.98, 0.98).verdict == CLOSE
    assert judged(0.90, 0.98, 0.98).verdict == MET
    assert judged(0.999, 0.95, 0.95).verdict == MISSED


def test_a_promise_is_judged_as_it_is_where_nothing_is_left_to_chance():
    assert judged(0.975, 0.98, 0.98, e2e_ms=100.0).verdict == MET
    assert judged(0.985, 0.98, 0.98, e2e_ms=100.0).verdict == MISSED


# --- what a sweep calls best --------------------------------------------------------------------------------


def best_of(first: list[float], second: list[float]):
    """The best of two cells with this output per GPU under each seed; the second has the shorter E2E."""
    cells = {1: (first, 200.0), 2: (second, 100.0)}
    rows = [
        {"n": cell, "seed": seed, "error": None, "output_throughput_per_gpu": value}
        for cell, (values, _) in cells.items()
        for seed, value in enumerate(values)
    ]
    table = pd.DataFrame(
        {"n": cell, "output_throughput_per_gpu": np.mean(values), "mean_e2el_ms": e2e_ms}
        for cell, (values, e2e_ms) in cells.items()
    )
    found = best_cell(table, pd.DataFrame(rows), ["n"], {})
    return found.setting["n"], found.equals


def test_a_cell_is_not_worse_because_two_seeds_differ_by_the_same():
    assert best_of([100.0, 110.0], [98.0, 108.0]) == (2, 2)
    assert best_of([100.0, 110.0, 130.0], [98.0, 108.1, 127.9]) == (1, 1)


def test_a_cell_is_worse_where_seeds_change_nothing_and_it_has_less():
    assert best_of([100.0, 100.0], [98.0, 98.0]) == (1, 1)


def test_a_configuration_that_keeps_no_rate_is_worse_than_one_that_keeps_all():
    slo = parse_slo("ttft_p90=1s")
    rows = [
        {"n": n, RATE: rate, "replication": seed, "error": None, "attainment_ttft_p90": share}
        for n, share in ((1, 1.0), (2, 0.5))
        for rate in (1.0, 2.0)
        for seed in range(5)
    ]
    found = capacities(pd.DataFrame(rows), ["n", RATE], dict(zip(slo.root, slo.targets, strict=True)))
    assert [each.joint.estimate for each in found] == [2.0, 0.0]
    assert all(isnan(each.joint.low) for each in found)
    best = best_capacity(found)
    assert (best.setting["n"], best.equals) == (1, 1)
