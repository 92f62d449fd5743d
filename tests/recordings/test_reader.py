"""Recordings are read as they were written: who was scheduled when, and how long it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import InputError
from sim.recordings import Added, StepScheduled, StepUpdated, load_recording
from tests.recordings.helpers import HEADER, add, step, update, write_lines

TWO_REQUESTS = [
    add(0, h=[[0, 2]]),
    add(1, h=[[0, 1], [2, 1]]),
    step(0, (1000, 2000), all=[[0, 40, 0], [1, 20, 16]]),
    update(0, (9000, 9500), got=[[1, 0]]),
    step(1, (10_000, 11_000), set=[[0, 1, 40], [1, 4, 36]]),
    step(2, (11_500, 12_000), set=[[1, 1, 40]]),
    update(1, (20_000, 20_500)),
    update(2, (30_000, 30_500), out=[[0, 1, "length"]]),
    step(3, (31_000, 31_500), off=[0], fin=[0]),
    update(3, (40_000, 40_100)),
    {"k": "close", "why": "shutdown"},
]


def test_each_step_tells_who_was_scheduled_and_from_where(tmp_path: Path) -> None:
    recording = load_recording(write_lines(tmp_path / "a.jsonl.gz", TWO_REQUESTS))
    assert [step.scheduled for step in recording.steps] == [
        ((0, 40, 0, True), (1, 20, 16, False)),
        ((0, 1, 40, True), (1, 4, 36, True)),
        ((0, 1, 41, True), (1, 1, 40, True)),
        ((1, 1, 41, True),),
    ]
    assert recording.calls[:4] == (Added(1e-5, 0), Added(1e-5, 1), StepScheduled(0), StepUpdated(0))
    assert recording.steps[3].finished == (0,)
    assert recording.ending == "shutdown"


def test_a_step_takes_from_its_schedule_or_the_update_before_to_its_own_update(tmp_path: Path) -> None:
    recording = load_recording(write_lines(tmp_path / "a.jsonl.gz", TWO_REQUESTS))
    assert [step.step_time_s for step in recording.steps] == pytest.approx([0.007, 0.009, 0.010, 0.0085])


def test_requests_know_what_became_of_them(tmp_path: Path) -> None:
    first, second = load_recording(write_lines(tmp_path / "a.jsonl.gz", TWO_REQUESTS)).requests
    assert (first.num_outputs, first.finish_reason) == (3, "length")
    assert (second.num_outputs, second.finish_reason) == (3, None)
    assert second.prompt_classes == ((0, 1), (2, 1))


def test_a_recording_is_read_up_to_where_it_was_cut_off(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.gz", [add(i) for i in range(2000)])
    path.write_bytes(path.read_bytes()[:-200])
    recording = load_recording(path)
    assert recording.ending == "cut off"
    assert 100 < len(recording.requests) < 2000


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{no json", r"a.jsonl.gz:3: cannot be read \(JSONDecodeError"),
        ({"k": "strange"}, "a.jsonl.gz:3: .*unknown kind of line 'strange'"),
        ({"k": "finish", "r": [7], "t": 1, "as": "FINISHED_ABORTED"}, "request 7 has not come"),
        (step(5, (0, 1), all=[]), "step 5 where 0 is next"),
        (step(0, (0, 1), set=[[0, 1, 1]]), "request 0 was not in the step before"),
        (add(4), "request 4 where 1 is next"),
        ({"k": "add", "r": 1}, "cannot be read .KeyError"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path, line: object, told: str) -> None:
    path = write_lines(tmp_path / "a.jsonl.gz", [add(0), line])
    with pytest.raises(InputError, match=told):
        load_recording(path)


def test_other_files_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a recording: format is 'other'"):
        load_recording(write_lines(tmp_path / "a.jsonl.gz", [], HEADER | {"format": "other"}))
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="not a whole gzip file"):
        load_recording(tmp_path / "b.jsonl.gz")
    with pytest.raises(InputError, match="No such file"):
        load_recording(tmp_path / "c.jsonl.gz")
