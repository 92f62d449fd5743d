"""The report must see differences where there are some, and say clearly which files it could not use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scheduler import SchedulerOutput
from sim.cli.commands import app
from sim.errors import InputError
from sim.evidence.conform import conform
from sim.evidence.conform.pretended import PretendedModel

GOLDEN = Path(__file__).parents[1] / "golden" / "0.16.0"


def changed_copy(name: str, folder: Path, change: Any) -> Path:
    """A recorded run with something altered, under its own name."""
    case = json.loads(gzip.decompress((GOLDEN / name).read_bytes()))
    change(case)
    path = folder / name
    path.write_bytes(gzip.compress(json.dumps(case).encode()))
    return path


def test_a_recorded_run_that_was_altered_is_found_at_the_altered_step(tmp_path: Path) -> None:
    def one_token_less(case: Any) -> None:
        case["trace"][20]["sch"][0][1] -= 1

    report = conform([changed_copy("fcfs_basic-0.json.gz", tmp_path, one_token_less)])
    (case,) = report.cases
    assert not case.identical
    assert case.identical_steps == 20
    assert case.difference is not None
    assert case.difference.keys == ("sch",)
    assert case.difference.recorded["sch"] != case.difference.replayed["sch"]
    assert "conform: 0 of 1 cases identical" in report.as_text()


def test_other_settings_than_the_recorded_ones_do_not_conform(tmp_path: Path) -> None:
    def fewer_blocks(case: Any) -> None:
        case["config"]["num_blocks"] -= 1

    assert not conform([changed_copy("preempt_cache-0.json.gz", tmp_path, fewer_blocks)]).passed


def test_an_altered_final_state_is_found(tmp_path: Path) -> None:
    def one_hit_more(case: Any) -> None:
        case["final"]["prefix"]["hits"] += 16

    (case,) = conform([changed_copy("prefix_share-0.json.gz", tmp_path, one_hit_more)]).cases
    assert case.difference is not None
    assert case.difference.step is None
    assert case.difference.keys == ("prefix",)


def test_a_truncated_recording_is_not_taken_for_identical(tmp_path: Path) -> None:
    def drop_the_end(case: Any) -> None:
        del case["trace"][-3:]

    assert not conform([changed_copy("fcfs_basic-0.json.gz", tmp_path, drop_the_end)]).passed


def test_an_unknown_event_is_a_failure_and_not_skipped(tmp_path: Path) -> None:
    def unknown_event(case: Any) -> None:
        case["events"].insert(0, [0, "reverse", 1])

    (case,) = conform([changed_copy("fcfs_basic-0.json.gz", tmp_path, unknown_event)]).cases
    assert case.difference is not None
    assert "reverse" in (case.difference.error or "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "not a gzip file"),
        (gzip.compress(b"plain text"), "not JSON"),
        (gzip.compress(b"[1, 2]"), "not a recorded run"),
        (gzip.compress(b'{"format": "sched-oracle/99"}'), "sched-oracle/99"),
        (gzip.compress(b'{"format": "sched-oracle/1", "vllm": "0.16.0"}'), "trace"),
        (gzip.compress(b'{"format": "sched-oracle/1"}')[:-12], "not a gzip file"),
    ],
    ids=["no gzip", "no JSON", "no case", "unknown format", "no trace", "half a file"],
)
def test_a_bad_file_is_reported_and_the_others_are_still_replayed(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "bad-0.json.gz").write_bytes(content)
    changed_copy("fcfs_basic-0.json.gz", tmp_path, lambda case: None)
    report = conform([tmp_path])
    assert report.identical == 1
    assert not report.passed
    (fault,) = report.faults
    assert "bad-0.json.gz" in str(fault)
    assert message in str(fault)
    assert "bad-0.json.gz" in report.as_text()


def test_paths_that_do_not_exist_are_all_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        conform([tmp_path / "nowhere", tmp_path])
    assert "nowhere" in str(error.value)
    assert "no *.json.gz files" in str(error.value)


def test_progress_is_told_of_every_file() -> None:
    seen = []
    conform([GOLDEN / "fcfs_basic-0.json.gz"], lambda done, total, result: seen.append((done, total, result)))
    ((done, total, result),) = seen
    assert (done, total) == (1, 1)
    assert result is not None
    assert result.identical


@pytest.mark.parametrize("error", [AssertionError, RuntimeError, ZeroDivisionError, AttributeError])
def test_an_error_within_a_step_is_told_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    calls = iter(range(1000))
    sample = PretendedModel.sample

    def fails_once(model: PretendedModel, output: SchedulerOutput) -> list[list[int]]:
        if next(calls) == 5:
            raise error("for the test")
        return sample(model, output)

    monkeypatch.setattr(PretendedModel, "sample", fails_once)
    changed_copy("fcfs_basic-0.json.gz", tmp_path, lambda case: None)
    changed_copy("fcfs_basic-1.json.gz", tmp_path, lambda case: None)
    report = conform([tmp_path], plain=True)
    assert [case.identical for case in report.cases] == [False, True]
    assert f"step 5\n  engine: {error.__name__}: for the test" in report.as_text()
    assert "conform: 1 of 2 cases identical" in report.as_text()


def test_a_run_cut_short_with_batches_in_flight_was_truncated(tmp_path: Path) -> None:
    """The last request has ended for the scheduler, but its batch has not come back."""

    def all_but_the_last_update(case: Any) -> None:
        case["max_steps"] = len(case["trace"]) - 1
        del case["trace"][-1]

    (case,) = conform([changed_copy("async_basic-0.json.gz", tmp_path, all_but_the_last_update)]).cases
    assert case.identical_steps == case.steps
    assert case.difference is not None
    assert case.difference.replayed["truncated"] is True


def test_the_command_replays_without_the_fast_way_too() -> None:
    outcome = CliRunner().invoke(app, ["conform", "--plain", str(GOLDEN / "fcfs_basic-0.json.gz")])
    assert outcome.exit_code == 0
    assert "conform: 1 of 1 cases identical" in outcome.output
