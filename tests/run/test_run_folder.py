"""The run folder: complete or not there, replaced as a whole, and read back as it was."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from sim import run_folder
from sim.errors import InputError
from sim.scenario import scenario_from_data
from sim.simulation import RunResult, simulate


def run(**changes: object) -> RunResult:
    data = {
        "name": "small",
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm",
        "engine": {"max_model_len": 2048},
        "workload": {
            "kind": "poisson",
            "rate_per_s": 10.0,
            "num_requests": 20,
            "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 5},
        },
    }
    return simulate(scenario_from_data(data | changes))


@pytest.fixture(scope="module")
def result() -> RunResult:
    return run()


def test_it_reads_back_what_was_written(result, tmp_path):
    saved = run_folder.load(run_folder.write(result, tmp_path))
    assert saved.summary == json.loads(json.dumps(result.summary))
    assert saved.scenario.name == "small"
    pd.testing.assert_frame_equal(saved.requests, result.requests, check_dtype=False)
    pd.testing.assert_frame_equal(saved.steps, result.steps, check_dtype=False)


def test_the_name_changes_with_anything_that_the_results_depend_on(result, tmp_path):
    name = run_folder.write(result, tmp_path).name
    assert name.startswith("small-")
    assert len(name) == len("small-") + 8
    assert run_folder.folder_name(run(seed=1).scenario) != name
    assert run_folder.folder_name(run().scenario) == name


def test_a_second_run_replaces_the_first_and_leaves_nothing_else(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    (folder / "old figure.png").write_text("stale")
    run_folder.write(result, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert not (folder / "old figure.png").exists()


def test_a_failure_while_writing_leaves_the_old_run_whole(result, tmp_path, monkeypatch):
    folder = run_folder.write(result, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full_disk)
    with pytest.raises(InputError, match="cannot be written: no space left on device"):
        run_folder.write(result, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_folder_without_a_table_is_no_run(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    (folder / "steps.csv").unlink()
    with pytest.raises(InputError, match=r"no run folder: steps.csv missing"):
        run_folder.load(folder)


def test_nothing_in_the_summary_depends_on_the_wall_clock(result):
    assert "date" not in result.summary
    assert run().summary == result.summary


def test_steps_are_written_as_pandas_would_write_them(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    assert (folder / "steps.csv").read_text() == result.steps.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "[]", "summary.json: is not the summary of a run"),
        ("summary.json", '{"a":' * 5000, "cannot be read"),
        ("requests.csv", "[]", "requests.csv:1: request_id: missing column"),
        (
            "steps.csv",
            "t_s,replica,step_time_s\nx,0,1\n",
            "steps.csv: t_s: holds something that is not a number",
        ),
    ],
)
def test_a_damaged_file_is_named(result, tmp_path, name, text, said):
    folder = run_folder.write(result, tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(InputError) as caught:
        run_folder.load(folder)
    assert said in str(caught.value)
