"""The highest rate and the smallest fleet, found on servers whose answers are known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sim import load_scenario
from sim.questions.size.load import RunLength, at_rate
from sim.questions.size.promise import BROKEN, CLOSE, JOINT, Promise, make_promise
from sim.questions.size.search import Capacity, Rounds, find_capacity, find_fleet
from sim.scenario.slo import parse_slo
from tests.decide.helpers import LindleysServer, answer, judged, m_d_1_capacity, m_d_1_share, one_at_a_time


def steep(capacity: float):
    """A server that keeps every promise up to its capacity and none above."""
    return lambda ask: judged(1.0 if ask.rate_per_s <= capacity * ask.replicas else 0.5, through=2 * capacity)


@pytest.mark.parametrize("capacity", [0.02, 1.0, 7.3, 400.0])
def test_the_rate_found_is_below_the_capacity_by_less_than_the_precision(capacity):
    found, asked = answer(find_capacity(1, seeds=5, precision=0.05), steep(capacity))
    assert found.rate_per_s <= capacity < found.above_per_s <= 1.05 * found.rate_per_s
    assert found.kept.is_met
    assert not found.broken.is_met
    assert len(asked) < 30


def test_a_first_guess_that_is_far_off_costs_runs_but_not_the_answer():
    for through in (0.5, 20.0, 900.0):
        found, _ = answer(
            find_capacity(1, 5, 0.05),
            lambda ask, t=through: judged(1.0 if ask.rate_per_s <= 20.0 else 0.5, through=t),
        )
        assert found.rate_per_s == pytest.approx(20.0, rel=0.06) or through == 900.0
        assert found.rate_per_s <= 20.0


def test_a_promise_that_even_an_idle_server_breaks_has_no_capacity():
    found, asked = answer(find_capacity(1, 5, 0.05), lambda ask: judged(0.3))
    assert found.rate_per_s == 0.0
    assert found.kept is None
    assert found.broken.failing == (JOINT,)
    assert len(asked) < 10


def test_a_promise_that_nothing_breaks_has_no_upper_end():
    found, _ = answer(find_capacity(1, 5, 0.05), lambda ask: judged(1.0))
    assert found.above_per_s is None
    assert found.rate_per_s > 1000.0


def test_a_run_that_fails_ends_the_search_and_is_told():
    broken = judged(0.0, verdict=BROKEN)
    found, asked = answer(find_capacity(1, 5, 0.05), lambda ask: broken)
    assert found.rate_per_s == 0.0
    assert found.broken is broken
    assert len(asked) == 1


def test_more_seeds_are_asked_for_only_where_a_few_leave_it_open():
    def server(ask):
        if 9.0 < ask.rate_per_s < 11.0 and ask.seeds > 1:
            return judged(0.99, verdict=CLOSE)
        return judged(1.0 if ask.rate_per_s < 10.0 else 0.5)

    found, asked = answer(find_capacity(1, 8, 0.05), server)
    assert found.rate_per_s <= 9.0
    assert {ask.rate_per_s for ask in asked if ask.seeds == 8} <= {
        ask.rate_per_s for ask in asked if 9.0 < ask.rate_per_s < 11.0
    }


# --- fleets -------------------------------------------------------------------------------------------------


def capacity_of(rate: float) -> Capacity:
    return Capacity(1, rate, 1.05 * rate, judged(1.0), judged(0.5))


def test_the_fleet_that_arithmetic_names_is_run_and_so_is_one_replica_fewer():
    fleet, asked = answer(find_fleet(capacity_of(10.0), 47.0, 5, 10), steep(10.0))
    assert (fleet.arithmetic, fleet.replicas) == (5, 5)
    assert fleet.tried[5].is_met
    assert not fleet.tried[4].is_met
    assert {ask.rate_per_s for ask in asked} == {47.0}


def test_where_the_run_of_the_whole_fleet_fails_there_is_one_replica_more():
    """A router that splits unevenly: the fleet takes less than its replicas do one by one."""
    fleet, _ = answer(find_fleet(capacity_of(10.0), 50.0, 5, 10), steep(9.0))
    assert (fleet.arithmetic, fleet.replicas) == (5, 6)
    assert not fleet.tried[5].is_met
    assert fleet.tried[6].is_met


def test_where_fewer_replicas_keep_it_together_the_smallest_such_fleet_is_found():
    fleet, asked = answer(find_fleet(capacity_of(1.0), 40.0, 5, 10), steep(1.9))
    assert (fleet.arithmetic, fleet.replicas) == (40, 22)
    assert not fleet.tried[21].is_met
    assert len({ask.replicas for ask in asked}) < 15


def test_a_fleet_that_never_keeps_it_is_given_up():
    fleet, _ = answer(find_fleet(capacity_of(10.0), 50.0, 5, 10), lambda ask: judged(0.9))
    assert fleet.replicas is None
    assert max(fleet.tried) > 10


def test_what_stays_too_close_to_say_counts_as_missed():
    def server(ask):
        return judged(0.99, verdict=CLOSE) if ask.replicas == 5 else judged(1.0 if ask.replicas > 5 else 0.5)

    fleet, asked = answer(find_fleet(capacity_of(10.0), 50.0, 5, 10), server)
    assert fleet.replicas == 6
    assert max(ask.seeds for ask in asked if ask.replicas == 5) == 10


# --- against theory -----------------------------------------------------------------------------------------


def test_erlangs_formula_agrees_with_a_long_queue():
    gaps = np.random.default_rng(3).exponential(1.0 / 0.8, 200_000)
    waits = np.zeros(len(gaps))
    for i in range(1, len(gaps)):
        waits[i] = max(0.0, waits[i - 1] + 1.0 - gaps[i])
    assert m_d_1_share(0.8, 1.0, 5.0) == pytest.approx(float((waits + 1.0 <= 5.0).mean()), abs=0.01)


def test_the_capacity_of_a_queue_with_constant_service_is_that_of_theory():
    """Service 0.1 s, 95 % within 0.5 s: M/D/1 says how fast requests may come."""
    base = one_at_a_time().model_copy(update={"slo": parse_slo("e2e_p95=500ms")})
    rounds = Rounds(make_promise(base, None), RunLength(600.0), LindleysServer(0.1, 0.5))
    found = rounds.run({0: base}, {0: find_capacity(1, 10, 0.02)})[0]
    theory = m_d_1_capacity(0.1, 0.5, 0.95)
    assert 0.93 * theory < found.rate_per_s <= 1.02 * theory


def test_attainment_falls_as_the_rate_rises_under_the_same_seeds():
    base = one_at_a_time().model_copy(update={"slo": parse_slo("e2e_p95=500ms")})
    server = LindleysServer(0.1, 0.5)
    from sim.jobs.points import Point

    points = [Point(at_rate(base, rate, 2000), {}) for rate in np.linspace(1.0, 12.0, 12)]
    shares = [outcome.summary["slo_attainment"] for outcome in server(points)]
    assert all(later <= earlier for earlier, later in pairwise(shares))


def test_another_rate_is_the_same_requests_at_another_speed():
    from sim.random_streams import streams
    from sim.workload import Limits, build_workload

    base = load_scenario("quickstart")
    slow, fast = (
        build_workload(at_rate(base, rate, 200), streams(0), Limits(16384)).table for rate in (2.0, 8.0)
    )
    np.testing.assert_allclose(slow.arrival_s, 4.0 * fast.arrival_s)
    assert (slow.prompt_tokens == fast.prompt_tokens).all()
    assert (slow.output_tokens == fast.output_tokens).all()


def test_a_run_is_made_once_however_many_candidates_ask_again():
    base = one_at_a_time().model_copy(update={"slo": parse_slo("e2e_p95=500ms")})
    promise = Promise(make_promise(base, None).targets, {"attainment_e2e_p95": 0.95})
    alone = LindleysServer(0.1, 0.5)
    rounds = Rounds(promise, RunLength(60.0), alone)
    first = rounds.run({0: base}, {0: find_capacity(1, 5, 0.05)})
    runs = alone.runs
    again = rounds.run({0: base}, {0: find_capacity(1, 5, 0.05)})
    assert alone.runs == runs
    assert first[0].rate_per_s == again[0].rate_per_s
