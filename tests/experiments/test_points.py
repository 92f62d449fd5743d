"""Points in, outcomes out: the same ones whoever simulates them, and nothing finished is ever done again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sim.jobs.points as points_module
from sim import load_scenario, simulate
from sim.jobs.options import Progress, RunOptions
from sim.jobs.points import Point, run_points
from sim.jobs.store import Store, point_key
from sim.jobs.worker import COLUMNS
from sim.random_streams import streams
from sim.scenario import Scenario
from sim.setup import EngineSetup
from sim.workload import Limits, Workload, build_workload

FIELDS = ("workload.duration_s=null", "workload.num_requests=25", "cluster.replicas=1")


def points(*rates: float, extra: tuple[str, ...] = ()) -> list[Point]:
    return [
        Point(load_scenario("quickstart", [*FIELDS, f"workload.rate_per_s={rate}", *extra]), {"rate": rate})
        for rate in rates
    ]


@pytest.fixture
def forbid_simulation(monkeypatch):
    """From now on everything must come from the store."""

    def forbid(*args):
        raise AssertionError("simulated again")

    return lambda: monkeypatch.setattr(points_module, "simulate_all", forbid)


def test_a_summary_is_that_of_the_run_and_columns_are_those_of_its_requests(tmp_path):
    (point,) = points(5)
    (outcome,) = run_points([point], columns=COLUMNS, options=RunOptions(workers=1, store=tmp_path))
    result = simulate(point.scenario)
    assert outcome.summary == result.summary
    assert set(outcome.samples) == set(COLUMNS)
    frame = result.requests
    np.testing.assert_array_equal(outcome.samples["status"], frame["status"].to_numpy(dtype=str))
    np.testing.assert_array_equal(
        outcome.samples["ttft_s"], (frame["first_token_s"] - frame["arrival_s"]).to_numpy()
    )
    mean_ms = np.mean(outcome.samples["tpot_s"]) * 1000
    assert mean_ms == pytest.approx(result.summary["mean_tpot_ms"], rel=1e-5)


def test_two_workers_give_what_one_gives_in_the_order_of_the_points(tmp_path):
    asked = points(9, 3, 6)
    alone = run_points(asked, columns=("ttft_s",), options=RunOptions(workers=1, store=tmp_path / "one"))
    together = run_points(asked, columns=("ttft_s",), options=RunOptions(workers=2, store=tmp_path / "two"))
    assert [outcome.point.label["rate"] for outcome in together] == [9, 3, 6]
    for one, two in zip(alone, together, strict=True):
        assert one.summary == two.summary
        kept = [Store(tmp_path / name).path(one.key).read_bytes() for name in ("one", "two")]
        assert kept[0] == kept[1]


def requests(num_requests: int) -> Workload:
    """The first requests of the quickstart's."""
    scenario = load_scenario("quickstart", [*FIELDS, f"workload.num_requests={num_requests}"])
    return build_workload(scenario, streams(scenario.seed), Limits(4096))


def twice_as_late(scenario: Scenario, setup: EngineSetup) -> EngineSetup:
    return replace(setup, replica=replace(setup.replica, front_end_s=2.0 * setup.replica.front_end_s))


def test_requests_may_be_given_in_place_of_the_scenarios_own(tmp_path):
    (point,) = points(5)
    asked = [replace(point, workload=requests(count)) for count in (7, 9, 7)]
    told: list[Progress] = []
    outcomes = run_points(asked, options=RunOptions(workers=2, store=tmp_path, on_progress=told.append))
    assert [outcome.summary["num_requests"] for outcome in outcomes] == [7, 9, 7]
    assert told[-1].total == 2, "equal requests on one engine are simulated once"


def test_another_engine_than_the_scenarios_own_is_simulated_and_not_kept(tmp_path):
    (point,) = points(5)
    changed = replace(point, change=twice_as_late)
    plain, late = run_points([point, changed], options=RunOptions(workers=1, store=tmp_path))
    assert late.summary["median_ttft_ms"] > plain.summary["median_ttft_ms"]
    told: list[Progress] = []
    again = run_points(
        [point, changed], options=RunOptions(workers=1, store=tmp_path, on_progress=told.append)
    )
    assert told[0].stored == 1
    assert [outcome.summary for outcome in again] == [plain.summary, late.summary]


def test_a_second_call_simulates_nothing(tmp_path, forbid_simulation):
    first = run_points(points(4, 5), columns=("ttft_s",), options=RunOptions(workers=1, store=tmp_path))
    forbid_simulation()
    told: list[Progress] = []
    second = run_points(
        points(4, 5),
        columns=("ttft_s",),
        options=RunOptions(store=tmp_path, on_progress=told.append),
    )
    assert told == [Progress(2, 2, 2, 0)]
    for one, two in zip(first, second, strict=True):
        assert one.summary == two.summary
        np.testing.assert_array_equal(one.samples["ttft_s"], two.samples["ttft_s"])


def test_an_interrupted_call_goes_on_where_it_stopped(tmp_path):
    def interrupt(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_points(
            points(3, 4, 5),
            options=RunOptions(workers=1, store=tmp_path, on_progress=interrupt),
        )
    told: list[Progress] = []
    resumed = run_points(
        points(3, 4, 5),
        options=RunOptions(workers=1, store=tmp_path, on_progress=told.append),
    )
    assert told[0] == Progress(2, 3, 2, 0)
    undisturbed = run_points(points(3, 4, 5), options=RunOptions(workers=1, store=None))
    assert [o.summary for o in resumed] == [o.summary for o in undisturbed]


def test_equal_points_are_simulated_once(tmp_path):
    told: list[Progress] = []
    outcomes = run_points(
        points(4, 4, 4),
        options=RunOptions(workers=1, store=tmp_path, on_progress=told.append),
    )
    assert told[-1].total == 1
    assert [outcome.summary for outcome in outcomes] == [outcomes[0].summary] * 3


def test_no_points_give_no_outcomes(tmp_path):
    assert run_points([], options=RunOptions(store=tmp_path)) == []


def test_a_point_that_fails_says_why_and_the_others_finish(tmp_path):
    too_large = points(4, extra=("model=meta-llama/Llama-3.1-70B",))
    failed, good = run_points([*too_large, *points(5)], options=RunOptions(workers=2, store=tmp_path))
    assert failed.summary is None
    assert "engine.tensor_parallel_size" in failed.error
    assert good.error is None
    assert good.summary["completed"] == 25
    assert not Store(tmp_path).path(failed.key).exists()


@pytest.mark.parametrize("damage", ["cut short", "empty", "a bit", "another", "text"])
def test_a_damaged_entry_is_made_again(tmp_path, damage):
    (outcome,) = run_points(points(5), columns=("ttft_s",), options=RunOptions(workers=1, store=tmp_path))
    (other,) = run_points(points(6), columns=("ttft_s",), options=RunOptions(workers=1, store=tmp_path))
    path = Store(tmp_path).path(outcome.key)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    path.write_bytes(
        {
            "cut short": whole[:-40],
            "empty": b"",
            "a bit": bytes(flipped),
            "another": Store(tmp_path).path(other.key).read_bytes(),
            "text": b"not an entry",
        }[damage]
    )
    (again,) = run_points(points(5), columns=("ttft_s",), options=RunOptions(workers=1, store=tmp_path))
    assert again.summary == outcome.summary
    assert path.read_bytes() == whole


def test_every_flipped_byte_is_noticed(tmp_path):
    (outcome,) = run_points(
        points(5),
        columns=("num_preemptions",),
        options=RunOptions(workers=1, store=tmp_path),
    )
    store = Store(tmp_path)
    path = store.path(outcome.key)
    whole = path.read_bytes()
    assert store.get(outcome.key) is not None
    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        path.write_bytes(bytes(changed))
        assert store.get(outcome.key) is None, at


def test_a_key_changes_with_everything_that_moves_a_result(tmp_path):
    trace = tmp_path / "trace.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    trace.write_text(f"{header}2023-11-16 18:15:46.680,100,10\n", encoding="utf-8")
    replay = load_scenario(
        "quickstart", ["workload={kind: trace, format: azure}", f"workload.path='{trace}'"]
    )
    before = point_key(replay)
    assert point_key(replay) == before
    trace.write_text(f"{header}2023-11-16 18:15:46.680,999,10\n", encoding="utf-8")
    assert point_key(replay) != before
    (five,), (six,) = points(5), points(6)
    assert len({point_key(five.scenario), point_key(six.scenario), point_key(five.scenario, ["ttft_s"])}) == 3
    assert point_key(five.scenario, ["e2e_s", "ttft_s"]) == point_key(five.scenario, ["ttft_s", "e2e_s"])


def test_an_unknown_column_names_a_near_one():
    with pytest.raises(ValueError, match="did you mean 'ttft_s'"):
        run_points([], columns=("ttft",))


def test_a_store_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be written"):
        run_points(points(5), options=RunOptions(store=tmp_path / "file" / "store"))


def test_a_default_store_that_cannot_be_written_costs_a_warning_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DRYSERVE_CACHE", str(tmp_path / "file" / "store"))
    with pytest.warns(RuntimeWarning, match="not kept"):
        (outcome,) = run_points(points(5), options=RunOptions(workers=1))
    assert outcome.error is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "loki"}, "did you mean 'loky'"),
        ({"workers": 0}, "at least 1"),
        ({"address": "tcp://localhost:1"}, "add --backend"),
        ({"backend": "dask"}, "needs --address"),
    ],
)
def test_a_place_that_makes_no_sense_is_told_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message):
        run_points(points(5), options=RunOptions(**options))


def test_progress_of_several_calls_is_told_as_that_of_one(tmp_path):
    told: list[Progress] = []
    here = RunOptions(workers=1, store=tmp_path, on_progress=told.append).over_many_calls()
    run_points(points(4, 5), options=here)
    run_points(points(5, 6, 7), options=here)
    assert [(each.done, each.total) for each in told] == [(0, 2), (1, 2), (2, 2), (3, 5), (4, 5), (5, 5)]
    assert told[-1] == Progress(done=5, total=5, stored=1, failed=0)
