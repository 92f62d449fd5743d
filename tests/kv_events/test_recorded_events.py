"""KV events, scheduler statistics and equal hashes are those that the real engine told, step by step."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.evidence.conform import conform
from sim.evidence.conform.case import load_case
from sim.evidence.conform.conform import replay_case

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("release", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("plain", [False, True])
def test_recorded_runs_are_told_alike(release: str, plain: bool) -> None:
    report = conform([DATA / release], plain=plain)
    assert report.passed, report.as_text()
    assert len(report.cases) > 40


def _spoil(path: Path, tmp_path: Path, spoil: Any) -> Path:
    content = json.loads(gzip.decompress(path.read_bytes()))
    spoil(content)
    target = tmp_path / path.name
    target.write_bytes(gzip.compress(json.dumps(content).encode()))
    return target


def _first_event(content: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = next(record["kve"][0] for record in content["trace"] if record.get("kve"))
    return event


def _first_statistics(content: dict[str, Any], key: str) -> dict[str, Any]:
    rows = (record["stats"] for record in content["trace"] if "stats" in record)
    row: dict[str, Any] = next(row for row in rows if key in row)
    return row


@pytest.mark.parametrize(
    ("key", "spoil"),
    [
        ("kve", lambda content: _first_event(content)["block_hashes"].append(999)),
        ("kve", lambda content: _first_event(content).update(block_size=5)),
        ("stats", lambda content: _first_statistics(content, "usage").update(usage=0.5)),
        ("stats", lambda content: _first_statistics(content, "prefix")["prefix"].reverse()),
        ("stats", lambda content: _first_statistics(content, "accepted_at")["accepted_at"].append(1)),
        ("hash_classes", lambda content: content["final"]["hash_classes"].reverse()),
    ],
)
def test_whatever_a_recording_tells_otherwise_is_a_difference(key: str, spoil: Any, tmp_path: Path) -> None:
    spoiled = _spoil(DATA / "0.33.0" / "async_spec-0.json.gz", tmp_path, spoil)
    difference = replay_case(load_case(spoiled)).difference
    assert difference is not None
    assert difference.keys == (key,)


def test_what_a_recording_does_not_have_is_not_asked_for() -> None:
    case = load_case(DATA / "0.33.0" / "async_spec-0.json.gz")
    trace = [{k: v for k, v in record.items() if k not in ("kve", "stats")} for record in case.trace]
    final = {k: v for k, v in case.final.items() if k != "hash_classes"}
    assert replay_case(replace(case, trace=trace, final=final, extras=())).identical
