"""Engines can be paused for a while: for new requests, or altogether."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.scenario import Scenario
from sim.simulation import RunResult, simulate
from tests.compare.helpers import burst, small_scenario

STREAM = {
    "kind": "constant",
    "rate_per_s": 10,
    "num_requests": 50,
    "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 60},
}


def paused(state: str, from_s: float = 1.0, to_s: float = 3.0, version: str = "0.33.0") -> Scenario:
    events = ({"at_s": from_s, "state": state}, {"at_s": to_s, "state": "unpaused"})
    return small_scenario(version, STREAM, pause_events=events)


def begun_between(result: RunResult, from_s: float, to_s: float) -> int:
    begin_s = result.steps["end_s"] - result.steps["step_time_s"]
    return int(((begin_s > from_s) & (begin_s < to_s)).sum())


def test_while_all_is_paused_no_step_begins_and_then_everybody_finishes():
    result = simulate(paused("paused_all"), check=True)
    assert begun_between(result, 1.0, 3.0) == 0
    assert begun_between(result, 0.0, 1.0) > 0
    assert result.summary["num_finished"] == 50
    assert ((result.requests["last_token_s"] <= 1.1) | (result.requests["last_token_s"] > 3.0)).all()


def test_while_new_requests_are_paused_running_ones_go_on():
    result = simulate(paused("paused_new"), check=True)
    first_s = result.requests["first_scheduled_s"]
    assert not ((first_s > 1.0) & (first_s < 3.0)).any()
    running = (first_s < 1.0) & (result.requests["last_token_s"] > 1.0)
    assert running.any()
    assert (result.requests["last_token_s"][running] < 3.0).all()
    assert result.summary["num_finished"] == 50


@pytest.mark.parametrize("version", ["0.17.0", "0.33.0"])
@pytest.mark.parametrize("state", ["paused_all", "paused_new"])
def test_pauses_fall_into_the_middle_of_steady_decode_and_both_ways_of_simulating_agree(state, version):
    scenario = paused(state, version=version)
    fast, plain = simulate(scenario), simulate(scenario, plain=True)
    assert fast.requests.equals(plain.requests)
    assert fast.summary == plain.summary


def test_pauses_after_the_last_answer_change_nothing():
    without = simulate(small_scenario(workload=STREAM))
    after = simulate(paused("paused_all", 100.0, 200.0))
    assert after.requests.equals(without.requests)
    assert after.summary == without.summary


def test_who_is_in_flight_when_the_engine_stops_for_good_is_counted_as_in_flight():
    events = ({"at_s": 0.05, "state": "paused_all"},)
    summary = simulate(small_scenario(workload=burst(3, 100, 500), pause_events=events)).summary
    assert summary["num_in_flight"] == 3


def test_pauses_must_be_in_the_order_of_time():
    events = ({"at_s": 3.0, "state": "unpaused"}, {"at_s": 1.0, "state": "paused_all"})
    with pytest.raises(InputError, match="must be in the order of time"):
        small_scenario(pause_events=events)
