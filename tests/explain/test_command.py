"""`dryserve explain` as a user runs it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from tests.cli.helpers import dryserve, write_scenario

TIGHT = """\
name: tight
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {max_model_len: 4096, num_gpu_blocks_override: 120}
workload:
  kind: poisson
  rate_per_s: 20
  num_requests: 50
  lengths: {kind: fixed, prompt_tokens: 300, output_tokens: 200}
slo: {ttft_p99: 1s, tpot_p99: 40ms}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, explained once with remedies and figures."""
    folder = tmp_path_factory.mktemp("explain")
    write_scenario(folder, TIGHT)
    done = explain(folder, "small.yaml", "-j", 1)
    assert done.returncode == 0, done.stderr
    (folder / "screen.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def explain(folder: Path, *arguments: object):
    return dryserve("explain", *arguments, cwd=folder, env={"DRYSERVE_CACHE": str(folder / "cache")})


def run_folder(place: Path) -> Path:
    (folder,) = (place / "runs").glob("tight-????????")
    return folder


def test_the_screen_answers_from_top_to_bottom(place: Path):
    screen = (place / "screen.txt").read_text(encoding="utf-8")
    assert screen.startswith("tight: p99 TTFT is ")
    assert "- KV blocks: " in screen
    places = [
        screen.index(words)
        for words in (
            "Where the time goes",
            "Worst ",
            "preemptions (",
            "Remedies",
            "as it is",
            "mirrors vLLM v0.16.0",
        )
    ]
    assert places == sorted(places)
    assert "better" in screen
    assert max(map(len, screen.splitlines())) <= 128


def test_the_folder_holds_everything(place: Path):
    folder = run_folder(place) / "explain" / "ttft-p99"
    assert sorted(path.name for path in folder.iterdir()) == [
        "explain.json",
        "explain.txt",
        "figures",
        "parts.csv",
        "report.html",
        "report.md",
    ]
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [
        "decomposition.png",
        "steps.png",
        "waterfall.png",
        "worst-minute-kv.png",
        "worst-minute-load.png",
    ]
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "![waterfall](figures/waterfall.png)" in page
    assert "| Where the time goes (mean) |" in page
    assert (folder / "explain.txt").read_text(encoding="utf-8") == (place / "screen.txt").read_text(
        encoding="utf-8"
    )
    with (folder / "parts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    parts = [name for name in rows[0] if name.startswith("ttft_") and name != "ttft_s"]
    for row in rows:
        assert sum(float(row[name]) for name in parts) == pytest.approx(float(row["ttft_s"]), abs=1e-7)


def test_a_run_folder_gives_the_same_answer(place: Path):
    again = explain(place, run_folder(place), "-j", 1, "--no-figures")
    assert again.returncode == 0, again.stderr
    assert again.stdout == (place / "screen.txt").read_text(encoding="utf-8")
    assert "note:" not in again.stderr


def test_json_says_what_the_screen_says(place: Path):
    done = explain(place, run_folder(place), "--json", "--no-remedies", "--no-figures", "--metric", "e2e")
    said = json.loads(done.stdout)
    assert said["explanation"]["metric"] == "e2el"
    assert said["explanation"]["top_cause"] in said["parts"]
    assert said["remedies"] is None
    slow = said["explanation"]["slow"]
    assert sum(slow["parts"].values()) == pytest.approx(slow["mean_s"])
    # what was found about the other metric is still there
    assert sorted(path.name for path in (run_folder(place) / "explain").iterdir()) == ["e2el-p99", "ttft-p99"]


def test_a_folder_of_other_results_is_told_apart(place: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(run_folder(place), folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    (folder / "summary.json").write_text(json.dumps(summary | {"completed": 1}), encoding="utf-8")
    done = explain(place, folder, "--no-remedies", "--no-figures")
    assert done.returncode == 0
    assert "are not what its scenario gives now" in done.stderr


TRACE = """\
name: replayed
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
workload: {kind: trace, path: rows.csv}
"""


def test_without_its_trace_the_tables_of_a_run_still_tell_something(tmp_path: Path):
    rows = "\n".join(f"{i / 10},{200 + i},20" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    write_scenario(tmp_path, TRACE)
    assert dryserve("run", "small.yaml", "--no-report", cwd=tmp_path).returncode == 0
    (tmp_path / "rows.csv").unlink()
    (folder,) = (tmp_path / "runs").glob("replayed-*")
    done = explain(tmp_path, folder)
    assert done.returncode == 0, done.stderr
    assert "cannot be run again" in done.stdout
    assert "prefill" in done.stdout
    assert "p99 TTFT is" in done.stdout
    gaps = explain(tmp_path, folder, "--metric", "itl")
    assert gaps.returncode == 2
    assert "gaps between tokens are not in the tables" in gaps.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "no scenario 'nosuch'"),
        (["."], "is no run folder: scenario.resolved.yaml missing"),
        (["small.yaml", "--metric", "tpot"], "tpot"),
        (["small.yaml", "--percentile", "101"], "99.99"),
        (["small.yaml", "--metric", "itl", "--percentile", "97"], "--no-remedies"),
        (["small.yaml", "--set", "engine.max_num_seqs=0"], "engine.max_num_seqs"),
        (["small.yaml", "--set", "workload.nothing=0"], "nothing"),
    ],
)
def test_wrong_input_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
):
    write_scenario(tmp_path, TIGHT)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_run_that_has_been_made_takes_no_changes(place: Path):
    done = explain(place, run_folder(place), "--set", "engine.max_num_seqs=3")
    assert done.returncode == 2
    assert "--set" in done.stderr


TURNS = """\
# Two prompts of 18 blocks each in a cache of 20, computed a block at a time, that preempt each other.
name: turns
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine:
  max_model_len: 320
  num_gpu_blocks_override: 21
  max_num_seqs: 4
  max_num_batched_tokens: 32
  long_prefill_token_threshold: 16
  enable_prefix_caching: false
  victim_policy: {kind: most_blocks_freed}
workload:
  kind: burst
  num_requests: 2
  lengths: {kind: fixed, prompt_tokens: 288, output_tokens: 4}
"""


def test_a_run_that_gets_no_further_says_so_and_what_would_help(tmp_path: Path):
    write_scenario(tmp_path, TURNS)
    done = explain(tmp_path, "small.yaml", "-j", 1)
    assert done.returncode == 0, done.stderr
    assert "WARNING: the run was ended by a livelock in replica 0" in done.stdout
    assert "2 were still in flight at the end" in done.stdout
    assert "nobody finished" in done.stdout
    helped = [line for line in done.stdout.splitlines() if "2 finish, not 0" in line]
    assert any("replicas 1 → 2" in line for line in helped)


def test_a_run_of_which_nothing_finished_has_nothing_to_explain(tmp_path: Path):
    write_scenario(tmp_path, TIGHT)
    done = explain(tmp_path, "small.yaml", "--set", "horizon_s=0.01")
    assert done.returncode == 0, done.stderr
    assert "Nothing to explain: no request that counts has finished." in done.stdout
    assert "Remedies" not in done.stdout
