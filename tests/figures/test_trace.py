"""A trace keeps the rules of the Trace Event Format, and tells of a run what its tables tell."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

from sim.errors import InputError
from sim.exports.trace import write_trace
from sim.results import run_folder
from sim.scenario import load_scenario
from sim.simulation import simulate

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
}
"""Keys that each phase must have, by the format's specification."""
SETTINGS = ["workload.num_requests=150", "engine.num_gpu_blocks_override=700"]


@pytest.fixture(scope="module")
def result():
    return simulate(load_scenario("kv-starved", SETTINGS))


@pytest.fixture(scope="module")
def fleet():
    # Not ahead of the GPU: there a batch with decodes would wait for the tokens of the one before it.
    changes = [
        "cluster.replicas=3",
        "engine.pipeline_parallel_size=2",
        "engine.async_scheduling=false",
        "workload.num_requests=60",
    ]
    return simulate(load_scenario("kv-starved", [*SETTINGS, *changes]))


def read(path: Path) -> dict:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def trace(run, folder: Path, **window) -> list[dict]:
    write_trace(run, folder / "trace.json.gz", **window)
    return read(folder / "trace.json.gz")["traceEvents"]


def check_format(events: list[dict]) -> None:
    """Required keys; ascending times on every track; slices that do not overlap; spans opened and closed."""
    last_ts: dict[tuple, float] = {}
    slice_end: dict[tuple, float] = {}
    open_spans: dict[tuple, list[str]] = defaultdict(list)
    for event in events:
        phase = event["ph"]
        assert set(event) >= REQUIRED[phase], event
        assert isinstance(event["pid"], int)
        if phase == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= 0
        track = {
            "X": ("thread", event["pid"], event.get("tid")),
            "i": ("instant", event["pid"], event.get("tid")),
            "C": ("counter", event["pid"], event["name"]),
        }.get(phase, ("async", event["pid"], event.get("cat"), event.get("id")))
        assert event["ts"] >= last_ts.get(track, 0.0), event
        last_ts[track] = event["ts"]
        if phase == "X":
            assert event["dur"] >= 0
            assert round(event["ts"] * 1000) >= slice_end.get(track, 0)
            slice_end[track] = round(event["ts"] * 1000) + round(event["dur"] * 1000)
        elif phase == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        elif phase == "i":
            assert event["s"] in {"g", "p", "t"}
        elif phase == "b":
            open_spans[track].append(event["name"])
        elif phase == "e":
            assert open_spans[track].pop() == event["name"], event
    assert not any(open_spans.values())


def of(events: list[dict], phase: str, **wanted) -> list[dict]:
    return [
        e for e in events if e["ph"] == phase and all(e.get(key) == value for key, value in wanted.items())
    ]


def test_a_run_with_preemptions_keeps_the_format(result, tmp_path):
    check_format(trace(result, tmp_path))


def test_a_fleet_of_pipelines_keeps_the_format_with_a_thread_for_each_step_in_flight(fleet, tmp_path):
    events = trace(fleet, tmp_path)
    check_format(events)
    names = {(e["pid"], e["args"]["name"]) for e in of(events, "M")}
    assert {
        (0, "cluster"),
        (1, "replica 0"),
        (3, "replica 2"),
        (1, "steps"),
        (1, "steps, 2 in flight"),
    } <= names


def test_every_step_is_a_slice_of_its_length_at_its_place(result, tmp_path):
    slices, steps = of(trace(result, tmp_path), "X"), result.steps
    assert len(slices) == len(steps)
    assert [e["dur"] for e in slices] == pytest.approx((steps["step_time_s"] * 1e6).tolist(), abs=0.01)
    assert [e["ts"] + e["dur"] for e in slices] == pytest.approx((steps["end_s"] * 1e6).tolist(), abs=0.002)
    tokens = sum(e["args"]["recompute_tokens"] for e in slices)
    assert tokens == steps["recompute_tokens"].sum() > 0


def test_every_request_is_a_span_with_its_phases_inside(result, tmp_path):
    events, requests = trace(result, tmp_path), result.requests
    spans = of(events, "b", name="request")
    assert {e["args"]["request_id"] for e in spans} == set(requests["request_id"])
    begin = {e["id"]: e["ts"] for e in spans}
    end = {e["id"]: e["ts"] for e in of(events, "e", name="request")}
    for row in requests.itertuples():
        assert begin[str(row.request_id)] == pytest.approx(row.arrival_s * 1e6, abs=0.002)
        assert end[str(row.request_id)] == pytest.approx(row.last_token_s * 1e6, abs=0.002)
    stalled = pd.DataFrame(
        [(b["id"], e["ts"] - b["ts"]) for b, e in zip(of(events, "b", name="preempted"),
                                                       of(events, "e", name="preempted"), strict=True)],
        columns=["id", "us"],
    ).groupby("id")["us"].sum() / 1e6  # fmt: skip
    lost = requests.set_index("request_id")["stalled_s"]
    assert stalled.to_dict() == pytest.approx({str(i): s for i, s in lost.items() if s > 0}, abs=1e-6)


def test_counters_follow_load_and_pool(result, tmp_path):
    events = trace(result, tmp_path)
    loads = [e["args"] for e in of(events, "C", name="requests")]
    assert max(load["waiting"] for load in loads) == result.steps["num_waiting"].max()
    pools = [e["args"] for e in of(events, "C", name="KV blocks")]
    assert max(pool["used"] for pool in pools) == result.steps["kv_used_blocks"].max()


def test_there_is_an_instant_for_each_preemption(result, tmp_path):
    instants = of(trace(result, tmp_path), "i", name="preemption")
    assert len(instants) == result.requests["num_preemptions"].sum() > 0
    assert [e["args"]["request_id"] for e in instants] == result.preemption_times["request_id"].tolist()


def test_a_window_holds_what_overlaps_it_and_nothing_reaches_out(result, tmp_path):
    events = trace(result, tmp_path, from_s=5.0, to_s=6.0)
    check_format(events)
    steps = result.steps
    overlapping = steps[(steps["end_s"] >= 5.0) & (steps["end_s"] - steps["step_time_s"] <= 6.0)]
    assert len(of(events, "X")) == len(overlapping)
    assert all(5e6 <= e["ts"] <= 6e6 for phase in "be" for e in of(events, phase))


def test_a_trace_too_long_is_cut_in_time_and_says_so(result, tmp_path):
    path = tmp_path / "short.json"
    written = write_trace(result, path, max_events=1500)
    whole = read(path)
    assert written.cut
    assert 1000 < written.num_events == len(whole["traceEvents"]) <= 1500
    assert whole["otherData"]["to_s"] == written.to_s < whole["otherData"]["run_ends_s"]
    assert "instead of" in whole["otherData"]["cut"]
    check_format(whole["traceEvents"])
    assert "cut" not in read_whole(result, tmp_path)["otherData"]


def read_whole(result, folder: Path) -> dict:
    write_trace(result, folder / "whole.json")
    return read(folder / "whole.json")


def test_a_folder_and_its_result_give_the_same_bytes(result, tmp_path):
    saved = run_folder.load(run_folder.write(result, tmp_path))
    write_trace(saved, tmp_path / "a.json.gz")
    write_trace(result, tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_requests_that_never_ended_and_those_refused_are_there(tmp_path):
    changes = ["horizon_s=6", "workload.rate_per_s=20", "engine.num_gpu_blocks_override=100"]
    cut = simulate(load_scenario("kv-starved", [*SETTINGS, *changes]))
    assert {"rejected", "in_flight"} <= set(cut.requests["status"])
    events = trace(cut, tmp_path)
    check_format(events)
    refused = cut.requests[cut.requests["status"].eq("rejected")]
    assert len(of(events, "i", name="rejected")) == len(refused)
    ends = {e["ts"] for e in of(events, "e", name="request")}
    assert round(cut.clock_s * 1e6, 3) in ends


def test_a_request_whose_client_hung_up_ends_then(tmp_path):
    changes = ["workload.num_requests=400", "workload.rate_per_s=30"]
    result = simulate(load_scenario("impatient-clients", changes))
    events = trace(result, tmp_path)
    check_format(events)
    end = {e["id"]: e["ts"] / 1e6 for e in of(events, "e", name="request")}
    aborted = result.requests[result.requests["status"].eq("aborted")]
    assert len(aborted) > 10
    for row in aborted.itertuples():
        assert end[str(row.request_id)] == pytest.approx(row.aborted_s, abs=1e-6)
    assert (aborted["aborted_s"] - aborted["arrival_s"]).max() < 60
    assert result.requests.loc[result.requests["status"].eq("finished"), "aborted_s"].isna().all()


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"from_s": 3.0, "to_s": 2.0}, "--from-s, --to-s: need 0 <= from < to, got 3 and 2.0"),
        ({"from_s": -1.0}, "need 0 <= from < to"),
        ({"from_s": float("nan")}, "need 0 <= from < to"),
        ({"to_s": float("nan")}, "need 0 <= from < to"),
        ({"from_s": 1e6}, "--from-s: begins after the run has ended"),
        ({"max_events": 0}, "--max-events: must be at least 1"),
        ({"max_events": 5}, "--max-events: 5 hold not even the first step"),
    ],
)
def test_a_window_that_cannot_be_is_refused_and_nothing_written(result, tmp_path, window, said):
    with pytest.raises(InputError) as caught:
        write_trace(result, tmp_path / "trace.json.gz", **window)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(result, tmp_path):
    with pytest.raises(
        InputError, match=r"nowhere/trace\.json: cannot be written: no such file or directory"
    ):
        write_trace(result, tmp_path / "nowhere" / "trace.json")
