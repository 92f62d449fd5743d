"""Recordings of vLLM's own schedulers replay identically; what was decided otherwise is found and named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler.release import release
from sim.cli.commands import app
from sim.evidence.recorded import conform_recordings, find_recordings, find_rules
from sim.evidence.recorded.replay import replay
from sim.evidence.recorded.search import RuleSet, improved
from sim.recordings import load_recording
from sim.scenario import load_scenario

DATA = Path(__file__).parent / "data"
RECORDED = sorted(path for path in DATA.rglob("*.jsonl.gz") if path.name != "newest_first.jsonl.gz")
NEWEST_FIRST = DATA / "0.16.0" / "newest_first.jsonl.gz"


def changed_copy(source: Path, folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    lines = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
    change(lines)
    path = folder / source.name
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def of_release(version: str) -> Callable[[list[dict[str, Any]]], object]:
    return lambda lines: lines[0].update(release=version)


@pytest.mark.parametrize(
    "path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}"
)
def test_recordings_of_vllms_own_schedulers_replay_identically(path: Path) -> None:
    (result,) = conform_recordings([path]).results
    assert result.description.startswith(f"{path}: {result.steps} of {result.steps} steps identical")
    assert result.steps >= 40


def test_a_patched_scheduler_is_found_at_the_step_in_which_it_first_decides_otherwise() -> None:
    recording = load_recording(NEWEST_FIRST)
    admitted: set[int] = set()
    for step in recording.steps:
        new = [each.request_id for each in step.scheduled if each.request_id not in admitted]
        admitted.update(new)
        if new != sorted(new) or (admitted and admitted != set(range(len(admitted)))):
            break
    done = CliRunner().invoke(app, ["conform", str(NEWEST_FIRST)])
    assert done.exit_code == 1
    assert f"first difference at step {step.index}" in done.output
    assert step.index > 3
    assert "recorded of NewestFirst, which is not vLLM's own scheduler" in done.output
    assert done.output.endswith("conform: 0 of 1 recordings identical (5 steps)\n")


def test_a_decision_that_was_altered_is_found_at_its_step(tmp_path: Path) -> None:
    def one_block_less(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["k"] == "s" and line["i"] == 30)["free"] -= 1

    lines_from = DATA / "0.33.0" / "aborts-2.jsonl.gz"
    path = changed_copy(lines_from, tmp_path, lambda lines: one_block_less(lines[1:]))
    (result,) = conform_recordings([path]).results
    assert result.replayed.difference is not None
    assert result.replayed.difference.index == 30
    assert [key for key, *_ in result.replayed.difference.values] == ["queues after scheduling"]


def test_an_unknown_release_takes_the_rules_by_date_and_the_rule_that_differs_is_named(
    tmp_path: Path,
) -> None:
    path = changed_copy(DATA / "0.16.0" / "sliding-2.jsonl.gz", tmp_path, of_release("0.99.0"))
    done = CliRunner().invoke(app, ["conform", str(path)])
    assert done.exit_code == 1
    assert "the decisions of vLLM 0.99.0 are not known; those of 0.33.0 stand in" in done.output
    assert "the rule that most likely differs: reuse_unhashed_first: false" in done.output
    assert "of whole releases 0.16.0 explains most" in done.output


def test_rules_finds_the_release_of_recordings_that_do_not_say_it(tmp_path: Path) -> None:
    for name in ("sliding-2", "streaming_stale-3", "priority_preempt-8"):
        changed_copy(DATA / "0.16.0" / f"{name}.jsonl.gz", tmp_path, of_release("0.99.0"))
    done = CliRunner().invoke(app, ["rules", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["version"], found["rules"]) == ("0.16.0", {})
    assert found["identical_steps"] == found["steps"] == 286
    assert found["releases"]["0.33.0" if "0.33.0" in found["releases"] else "0.99.0"] < 286


def test_rules_of_a_release_are_set_otherwise_one_by_one_where_that_explains_more() -> None:
    recording = load_recording(DATA / "0.16.0" / "sliding-2.jsonl.gz")
    start = RuleSet("0.33.0", {}, replay(recording, release("0.33.0")).identical)
    best = improved([recording], start)
    assert best.identical == len(recording.steps) > start.identical
    assert best.changed["reuse_unhashed_first"] is False
    assert len(best.changed) < 5


def test_what_rules_prints_can_be_pasted_into_a_scenario(tmp_path: Path) -> None:
    answer = find_rules([DATA / "0.33.0" / "combined-3.jsonl.gz"])
    assert answer.rules == {"lookahead_hashes": False}  # the recorded engine was started without it
    scenario = tmp_path / "mine.yaml"
    text = (Path(__file__).parents[2] / "scenarios" / "quickstart.yaml").read_text(encoding="utf-8")
    assert "\nengine:\n" in text
    head, rest = text.split("\nengine:\n")
    kept = [line for line in rest.splitlines() if not line.strip().startswith("version:")]
    scenario.write_text("\n".join([head, answer.yaml(), *kept]) + "\n", encoding="utf-8")
    engine = load_scenario(scenario).engine
    assert (engine.version, engine.rules) == ("0.33.0", {"lookahead_hashes": False})


def test_what_a_replay_cannot_follow_is_refused_by_name(tmp_path: Path) -> None:
    def with_an_image(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines[1:] if line["k"] == "add" and line["r"] == 3)["not"] = "encoder inputs"

    path = changed_copy(RECORDED[0], tmp_path, with_an_image)
    done = CliRunner().invoke(app, ["conform", str(path)])
    assert done.exit_code == 2
    assert "cannot be followed further: request 3: encoder inputs" in done.output

    path = changed_copy(
        RECORDED[0],
        tmp_path,
        lambda lines: lines[0]["settings"].update(not_replayed=["encoder-decoder model"]),
    )
    done = CliRunner().invoke(app, ["conform", str(path)])
    assert done.exit_code == 2
    assert "cannot be replayed: encoder-decoder model" in done.output
    done = CliRunner().invoke(app, ["rules", str(path)])
    assert done.exit_code == 2


def test_a_recording_that_was_cut_off_is_identical_up_to_the_cut(tmp_path: Path) -> None:
    def cut(lines: list[dict[str, Any]]) -> None:
        del lines[-40:]

    (result,) = conform_recordings([changed_copy(RECORDED[0], tmp_path, cut)]).results
    assert result.identical
    assert "the recording ends early (cut off)" in result.description


def test_an_empty_recording_proves_nothing(tmp_path: Path) -> None:
    def nothing(lines: list[dict[str, Any]]) -> None:
        del lines[1:]

    report = conform_recordings([changed_copy(RECORDED[0], tmp_path, nothing)])
    assert not report.passed
    assert "there is no step in it" in report.as_text()


def test_folders_may_hold_recordings_and_cases(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").touch()
    (tmp_path / "b.json.gz").touch()
    assert find_recordings([tmp_path]) == ([tmp_path / "a.jsonl.gz"], [tmp_path])
    assert find_recordings([DATA])[1] == []
    assert find_recordings(["absent"]) == ([], [Path("absent")])
