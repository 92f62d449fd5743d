"""The run folder: complete or not there, replaced as a whole, and read back as it was."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest

from sim.errors import InputError
from sim.results import run_folder
from sim.results.run_tables import frame, write_csv
from sim.scenario import load_scenario, scenario_from_data
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


@cache
def preempting() -> RunResult:
    return simulate(
        load_scenario("kv-starved", ["workload.num_requests=60", "engine.num_gpu_blocks_override=500"])
    )


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


def test_a_second_run_replaces_the_tables_and_keeps_what_other_commands_put_beside_them(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    (folder / "explain" / "figures").mkdir(parents=True)
    beside = {"explain/figures/f.png": b"1", "explain/explain.json": b"2", "trace.json.gz": b"3"}
    for name, held in beside.items():
        (folder / name).write_bytes(held)
    whole = (folder / "steps.csv").read_bytes()
    (folder / "steps.csv").write_text("damaged")
    run_folder.write(result, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {name: (folder / name).read_bytes() for name in beside} == beside
    assert (folder / "steps.csv").read_bytes() == whole


def test_a_failure_on_the_way_into_place_leaves_the_old_run_whole(result, tmp_path, monkeypatch):
    folder = run_folder.write(result, tmp_path)
    (folder / "trace.json.gz").write_bytes(b"3")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "put_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_folder.write(result, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_failure_while_writing_leaves_the_old_run_whole(result, tmp_path, monkeypatch):
    folder = run_folder.write(result, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "write_csv", full_disk)
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


def test_tables_are_written_as_pandas_would_write_them(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    tables = {"requests": result.requests, "steps": result.steps, "preemptions": result.preemption_times}
    for name, table in tables.items():
        assert (folder / f"{name}.csv").read_text() == table.to_csv(index=False, lineterminator="\n")


def test_gaps_quotes_and_small_and_large_numbers_are_written_as_pandas_would_write_them(tmp_path):
    columns = {
        "number": np.array([0.1, np.nan, 1e-5, 1e16, -np.inf, 123456789.123456789]),
        "count": np.array([1, 2, 3, 4, 5, 1 << 40]),
        "text": np.array(["plain", 'a "b"', "a, b", "a\nb", "", "ü"], dtype=object),
    }
    write_csv(columns, tmp_path / "table.csv")
    told = frame(columns).to_csv(index=False, lineterminator="\n")
    assert (tmp_path / "table.csv").read_bytes().decode() == told


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "[]", "summary.json: is not the summary of a run"),
        ("summary.json", '{"a":' * 5000, "cannot be read"),
        ("requests.csv", "[]", "requests.csv:1: request_id: missing column"),
        (
            "steps.csv",
            "end_s,replica,step_time_s\nx,0,1\n",
            "steps.csv: end_s: holds something that is not a number",
        ),
    ],
)
def test_a_damaged_file_is_named(result, tmp_path, name, text, said):
    folder = run_folder.write(result, tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(InputError) as caught:
        run_folder.load(folder)
    assert said in str(caught.value)


def test_every_file_that_cannot_be_read_is_named(tmp_path):
    folder = run_folder.write(preempting(), tmp_path)
    (folder / "summary.json").write_text('{"notes": [],\n "x": ')
    (folder / "steps.csv").write_bytes(b"")
    (folder / "requests.csv").write_bytes(bytes(range(256)) * 40)
    (folder / "preemptions.csv").write_bytes(b'a,b\n1,2,3,4,5\n"')
    with pytest.raises(InputError) as caught:
        run_folder.load(folder)
    named = [fault.where for fault in caught.value.faults]
    assert named == [
        str(folder / name) for name in ("summary.json", "requests.csv", "steps.csv", "preemptions.csv")
    ]
    assert "cannot be read: not JSON from line 2, column " in str(caught.value)


@pytest.mark.parametrize("name", ["requests.csv", "steps.csv", "preemptions.csv"])
@pytest.mark.parametrize("cut", ["mid-row", "between rows"])
def test_a_table_cut_short_is_named(tmp_path, name, cut):
    folder = run_folder.write(preempting(), tmp_path)
    text = (folder / name).read_text()
    rows = text.splitlines(keepends=True)
    half = "".join(rows[: len(rows) // 2])
    (folder / name).write_text(half if cut == "between rows" else half + rows[len(rows) // 2][:-3])
    with pytest.raises(InputError) as caught:
        run_folder.load(folder)
    assert name in str(caught.value)
    assert "is not whole" in str(caught.value) or "is cut short" in str(caught.value)


@pytest.mark.parametrize("name", ["requests.csv", "steps.csv", "preemptions.csv"])
def test_every_missing_column_is_named(tmp_path, name):
    folder = run_folder.write(preempting(), tmp_path)
    table = pd.read_csv(folder / name)
    table.iloc[:, :1].to_csv(folder / name, index=False)
    with pytest.raises(InputError) as caught:
        run_folder.load(folder)
    assert [fault.path for fault in caught.value.faults] == list(table.columns[1:])


def test_a_status_that_is_none_is_named_with_its_line(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    table = pd.read_csv(folder / "requests.csv")
    table.loc[3, "status"] = "done"
    table.to_csv(folder / "requests.csv", index=False)
    with pytest.raises(InputError, match=r"requests.csv:5: status: 'done' is no status of a request"):
        run_folder.load(folder)


def test_a_table_that_lacks_only_its_last_line_end_is_named(tmp_path):
    folder = run_folder.write(preempting(), tmp_path)
    text = (folder / "steps.csv").read_text()
    (folder / "steps.csv").write_text(text.removesuffix("\n"))
    with pytest.raises(InputError, match=r"steps.csv:\d+: is cut short: its last line has no end"):
        run_folder.load(folder)


@pytest.mark.parametrize("warmup_s", [0.0, 0.5, 100.0])
def test_a_whole_folder_is_accepted_whatever_its_warm_up(tmp_path, warmup_s):
    run_folder.load(run_folder.write(run(warmup_s=warmup_s), tmp_path))


def test_several_folders_are_read_with_the_faults_of_all(result, tmp_path):
    whole = run_folder.write(result, tmp_path)
    with pytest.raises(InputError) as caught:
        run_folder.load_all([tmp_path / "a", whole, tmp_path / "b"])
    assert [fault.where for fault in caught.value.faults] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert len(run_folder.load_all([whole, whole])) == 2


def test_a_folder_of_an_older_version_names_the_end_of_a_step_otherwise(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    steps = (folder / "steps.csv").read_text()
    (folder / "steps.csv").write_text(steps.replace("end_s,", "t_s,", 1))

    assert list(run_folder.load(folder).steps) == list(result.steps)


def test_a_folder_without_preemption_times_is_still_a_run(result, tmp_path):
    folder = run_folder.write(result, tmp_path)
    (folder / "preemptions.csv").unlink()
    assert run_folder.load(folder).preemption_times is None
