"""The requests of a recording under another engine: a workload like any trace."""

from __future__ import annotations

from pathlib import Path

import pytest

import dryserve as ds

DATA = Path(__file__).parent / "data"
SMALL = ["cluster.replicas=1", "workload.duration_s=20"]


def replayed(path: Path, *overrides: str) -> ds.RunResult:
    section = f"workload={{kind: trace, path: '{path}', ignore_eos: true}}"
    return ds.simulate("shared-prefix", [section, "cluster.replicas=1", *overrides])


def test_a_recorded_run_has_the_same_lengths_and_prefix_hits_when_it_is_replayed(tmp_path: Path) -> None:
    first = ds.simulate("shared-prefix", SMALL, record=tmp_path / "run.jsonl.gz")
    again = replayed(tmp_path / "run.jsonl.gz")
    for key in ("completed", "total_input_tokens", "total_output_tokens", "prefix_cache_queries"):
        assert again.summary[key] == first.summary[key], key
    assert first.summary["prefix_cache_hits"] > 0
    assert again.summary["prefix_cache_hits"] == pytest.approx(first.summary["prefix_cache_hits"], rel=0.01)
    assert again.summary["mean_tpot_ms"] == pytest.approx(first.summary["mean_tpot_ms"], rel=0.02)
    arrivals = [result.requests["arrival_s"].to_numpy() for result in (first, again)]
    gaps = [times[1:] - times[:-1] for times in arrivals]
    assert gaps[1] == pytest.approx(gaps[0], abs=2e-3)


def test_the_requests_of_a_real_engine_run_under_another_gpu_and_release() -> None:
    result = replayed(DATA / "0.16.0" / "llm.jsonl.gz", "gpu=h200-sxm", "engine.version=0.33.0")
    recording = ds.load_recording(DATA / "0.16.0" / "llm.jsonl.gz")
    outputs = sum(request.num_outputs for request in recording.requests)
    assert result.summary["completed"] == sum(bool(request.num_outputs) for request in recording.requests)
    assert result.summary["total_output_tokens"] == outputs


def test_it_is_said_which_requests_were_not_taken_as_they_were() -> None:
    result = replayed(DATA / "0.33.0" / "aborts-2.jsonl.gz")
    assert any("were ended from outside" in note for note in result.notes)


def test_a_trace_of_another_form_is_no_recording(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n", encoding="utf-8")
    with pytest.raises(ds.InputError, match=r"trace\.csv"):
        ds.simulate("shared-prefix", [f"workload={{kind: trace, path: '{trace}', format: recording}}"])
