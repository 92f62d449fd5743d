"""`dryserve sweep` as a user runs it: screen, machine-readable output, exit codes, and what it leaves."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.helpers import dryserve, write_scenario


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, list[object], str]:
    """A folder with a scenario, the arguments of a sweep over it, and the screen that came."""
    folder = tmp_path_factory.mktemp("swept")
    grids = ["max_num_seqs=2,64", "max_num_batched_tokens=256..1024"]
    arguments = ["sweep", write_scenario(folder), "--grid", *grids, "--replications", 2, "--workers", 1]
    done = dryserve(*arguments, "--out", folder / "out", env={"DRYSERVE_CACHE": str(folder / "cache")})
    assert done.returncode == 0, done.stderr
    assert "12 runs made, 0 found, 0 left" in done.stderr
    return folder, arguments, done.stdout


def test_the_screen_has_a_line_for_each_point_the_best_one_and_where_it_comes_from(swept):
    lines = swept[2].splitlines()
    head = "small: 6 points (2 max_num_seqs x 3 max_num_batched_tokens), 2 replications each, seeds from 0"
    assert lines[0] == head
    assert sum(line.lstrip().startswith(("2  ", "64  ")) for line in lines) == 6
    assert sum("<- best" in line for line in lines) == 1
    assert any(line.startswith("  vllm serve meta-llama/Llama-3.1-8B --max-num-seqs ") for line in lines)
    footer = " ".join(swept[2].partition("- mirrors vLLM v")[2].split())
    for part in ("open loop", "2 seeds", "95% intervals", "no warm-up removed", "calibration h100-sxm"):
        assert part in footer.partition(" - ")[0]
    assert "error in validation" in footer


def test_figures_and_tables_are_left(swept):
    (left,) = (swept[0] / "out").iterdir()
    assert sorted(path.name for path in left.iterdir()) == [
        "base.resolved.yaml",
        "figures",
        "points.csv",
        "replications.csv",
        "report.html",
        "report.md",
        "sweep.json",
    ]
    names = sorted(path.stem for path in (left / "figures").iterdir())
    assert names == ["budget_strips", "slo_heatmap"]


def test_the_same_again_simulates_nothing_and_says_the_same(swept):
    folder, arguments, screen = swept
    again = dryserve(*arguments, "--out", folder / "out", env={"DRYSERVE_CACHE": str(folder / "cache")})
    assert "0 runs made, 12 found" in again.stderr
    assert again.stdout == screen


def test_json_and_csv_are_the_whole_of_stdout(swept):
    folder, arguments, _ = swept
    options = [*arguments, "--out", folder / "out2", "--no-figures"]
    env = {"DRYSERVE_CACHE": str(folder / "cache")}
    told = json.loads(dryserve(*options, "--json", env=env).stdout)
    assert told["paths"] == ["engine.max_num_seqs", "engine.max_num_batched_tokens"]
    assert told["best"]["vllm_flags"].startswith("--max-num-seqs")
    table = pd.read_csv(StringIO(dryserve(*options, "--csv", env=env).stdout))
    assert list(table["engine.max_num_seqs"]) == [2, 2, 2, 64, 64, 64]
    assert table["p90_ttft_ms"].tolist() == [point["p90_ttft_ms"] for point in told["points"]]


def test_a_point_that_fails_is_named_and_the_exit_code_is_1(swept, tmp_path):
    models = "model=meta-llama/Llama-3.1-8B,meta-llama/Llama-3.1-70B"
    done = dryserve("sweep", swept[0] / "small.yaml", models, "--replications", 1, "--out", tmp_path)
    assert done.returncode == 1
    assert "1 of 2 points failed:" in done.stdout
    assert "model meta-llama/Llama-3.1-70B: " in done.stdout


def test_mistakes_are_lines_on_stderr_and_nothing_is_left(swept, tmp_path):
    done = dryserve(
        "sweep", swept[0] / "small.yaml", "max_num_seqs=0,3", "watermark", "--rate", "9:1", "--out", tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert all(line.startswith("error: --") for line in done.stderr.splitlines())
    assert len(done.stderr.splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_a_warning(swept, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    env = {"DRYSERVE_CACHE": str(tmp_path / "file")}
    options = ["--replications", 1, "--workers", 1, "--no-figures", "--out", tmp_path / "out"]
    done = dryserve("sweep", swept[0] / "small.yaml", *options, env=env)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: results are not kept for a later call: ")
