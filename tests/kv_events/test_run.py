"""`dryserve run --kv-events FILE`: a run's KV events as JSON lines."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from sim.errors import InputError
from sim.simulation import RunResult, simulate

SCENARIO = "kv-starved"
SMALL = ["workload.num_requests=80"]


def _lines(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def _simulate(path: Path | None, overrides: Sequence[str] = ()) -> RunResult:
    return simulate(SCENARIO, [*SMALL, *overrides], kv_events=path)


def test_the_file_tells_what_stays_in_each_replicas_cache(tmp_path: Path) -> None:
    result = _simulate(tmp_path / "events.jsonl.gz", ["cluster.replicas=2"])
    known: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    for line in _lines(tmp_path / "events.jsonl.gz"):
        event, cache = line["event"], known[line["replica"]]
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
            cache.update(event["block_hashes"])
        else:
            assert event["type"] == "BlockRemoved"
            cache.subtract(event["block_hashes"])
    for replica, cache in known.items():
        keys = result.engines[replica].kv_cache.pool.key_of_block
        assert +cache == Counter(key for key in keys if key is not None)
        assert cache


def test_lines_stand_at_the_ends_of_steps(tmp_path: Path) -> None:
    result = _simulate(tmp_path / "events.jsonl")
    ends_s = result.steps["end_s"].tolist()
    for line in _lines(tmp_path / "events.jsonl"):
        assert line["time_s"] == ends_s[line["step"]]


def test_results_are_the_same_whether_or_not_anybody_listens(tmp_path: Path) -> None:
    told, untold = _simulate(tmp_path / "events.jsonl"), _simulate(None)
    assert told.summary == untold.summary
    assert told.requests.equals(untold.requests)
    assert told.steps.equals(untold.steps)


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    options = ["--set", *SMALL, "--out", str(tmp_path), "--no-report", "--kv-events", str(file)]
    assert CliRunner().invoke(app, ["run", SCENARIO, *options]).exit_code == 0
    assert _lines(file)[0]["event"]["type"] == "BlockStored"


def test_a_file_that_cannot_be_written_is_one_clear_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written") as caught:
        _simulate(tmp_path / "nowhere" / "events.jsonl")
    assert "nowhere" in str(caught.value)
