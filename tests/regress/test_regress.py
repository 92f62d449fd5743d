"""`dryserve regress`: the committed baseline holds, and what is changed is named with its layer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from sim.errors import InputError
from sim.evidence.regress import (
    Baseline,
    Regression,
    observe,
    read_baseline,
    recorded,
    scenario_files,
    write_baseline,
)
from sim.evidence.regress.baseline import Observation
from sim.evidence.regress.changelog import enter, entered
from sim.random_streams import streams
from sim.scenario import load_scenario
from sim.workload import Limits, build_workload

ROOT = Path(__file__).resolve().parents[2]
SET = ROOT / "tests" / "regress"
PACKAGES = ("sim", "scheduler", "cost_models", "scenarios")


def compared(before: Baseline, now: Mapping[str, Observation]) -> Regression:
    return Regression(SET, before, now)


def test_every_scenario_is_as_the_committed_baseline_has_it() -> None:
    """Golden numbers; the laws that they must keep are in tests/laws. If this is meant: `dryserve regress
    --accept --why "…"`.
    """
    baseline = read_baseline(SET)
    assert baseline is not None
    found = compared(baseline, observe(scenario_files(SET), baseline.scenarios))
    assert [(s.name, s.fault, s.layers, s.beyond[:3]) for s in found.failed] == []
    assert all(s.changes for s in found.scenarios)


def some_of_the_set(folder: Path, *names: str) -> Path:
    """A set of these scenarios alone, with their part of the committed baseline."""
    folder.mkdir(parents=True)
    for name in names:
        shutil.copy(SET / f"{name}.yaml", folder)
    baseline = read_baseline(SET)
    assert baseline is not None
    write_baseline(folder, {name: baseline.scenarios[name] for name in names}, baseline)
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


# --- one thing changed in a copy of the sources -----------------------------------------------------------


@pytest.fixture
def regress_in_a_copy(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Copies the sources and a set, lets a change be made in the copy, and runs `dryserve regress` there."""

    def run(change: Callable[[Path], None], *names: str) -> subprocess.CompletedProcess[str]:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
        some_of_the_set(tmp_path / "set", *names)
        change(tmp_path)
        return subprocess.run(
            [sys.executable, "-c", "from sim.cli import main; main()", "regress", "set", "--no-figures"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def verdicts(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("FAIL")]


def test_a_changed_rule_of_the_scheduler_is_named(regress_in_a_copy) -> None:
    """Victims go to the end of the queue; only the scenario with preemptions can show it."""

    def change(tree: Path) -> None:
        edit(tree / "scheduler/waiting.py", "_front.append(request)", "_back.append(request)")

    (verdict,) = verdicts(regress_in_a_copy(change, "chat", "preemptions"))
    assert verdict.startswith("FAIL preemptions: p")
    assert verdict.endswith("likely layer: scheduler")


def test_a_changed_calibration_constant_is_named(regress_in_a_copy) -> None:
    def change(tree: Path) -> None:
        file = tree / "cost_models/data/calibrations/h100-sxm.json"
        edit(file, '"memory_efficiency": 0.950076', '"memory_efficiency": 0.931')

    done = regress_in_a_copy(change, "chat", "preemptions")
    (verdict,) = verdicts(done)
    assert verdict.startswith("FAIL chat: ")
    assert verdict.endswith("likely layer: cost model")
    assert "decodes at 4096 tokens +1" in done.stdout
    assert "× the validation error of" in done.stdout


def test_a_changed_workload_parameter_is_named(regress_in_a_copy) -> None:
    def change(tree: Path) -> None:
        edit(tree / "set/chat.yaml", "rate_per_s: 12", "rate_per_s: 13")

    done = regress_in_a_copy(change, "chat", "preemptions")
    (verdict,) = verdicts(done)
    assert verdict.startswith("FAIL chat: ")
    assert verdict.endswith("likely layer: workload")
    assert "workload.rate_per_s 12.0 → 13.0; arrival_s of 240 of 240 requests" in done.stdout


def test_a_change_in_how_requests_are_drawn_is_the_workloads_too(regress_in_a_copy) -> None:
    def change(tree: Path) -> None:
        edit(tree / "sim/workload/draws.py", 'streams("lengths")', 'streams("length")')

    done = regress_in_a_copy(change, "preemptions")
    (verdict,) = verdicts(done)
    assert verdict.endswith("likely layer: workload")
    assert "prompt_tokens of " in done.stdout


def test_a_changed_router_is_the_clusters(regress_in_a_copy) -> None:
    def change(tree: Path) -> None:
        edit(
            tree / "sim/cluster/router.py", "return loads.index(min(loads))", "return loads.index(max(loads))"
        )

    (verdict,) = verdicts(regress_in_a_copy(change, "prefixes-on-two"))
    assert verdict.endswith("likely layer: cluster")


def test_two_changes_are_told_apart(regress_in_a_copy) -> None:
    """The scheduler is judged on the baseline's requests, so a changed workload does not hide behind it."""

    def change(tree: Path) -> None:
        edit(tree / "set/preemptions.yaml", "rate_per_s: 6", "rate_per_s: 7")
        edit(tree / "scheduler/waiting.py", "_front.append(request)", "_back.append(request)")

    (verdict,) = verdicts(regress_in_a_copy(change, "preemptions"))
    assert verdict.endswith("likely layer: workload, scheduler")


# --- the command ------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["regress", *arguments])
    return done.exit_code, done.output


def test_a_set_begins_with_a_first_baseline_and_then_holds(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(SET / "tensor-parallel.yaml", folder)
    out = str(tmp_path / "out")
    code, said = run(str(folder))
    assert code == 2
    assert "--accept --why" in said
    assert run(str(folder), "--accept", "--why", "first")[0] == 0
    code, said = run(str(folder), "--out", out, "--no-figures")
    assert code == 0
    assert "all as it was" in said


def test_accepting_writes_the_baseline_and_says_in_the_changelog_what_moved_and_why(tmp_path: Path) -> None:
    folder, log, out = some_of_the_set(tmp_path / "set", "chat"), tmp_path / "CHANGELOG.md", tmp_path / "out"
    log.write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n- a thing\n\n## [1.0]\n- old\n")
    edit(folder / "chat.yaml", "max_model_len: 8192", "max_model_len: 8192\n  max_num_batched_tokens: 512")
    code, _ = run(
        str(folder), "--accept", "--why", "a smaller budget.", "--changelog", str(log), "--out", str(out)
    )
    assert code == 0
    line = next(line for line in log.read_text().splitlines() if line.startswith("- Simulated"))
    assert line.startswith("- Simulated numbers moved: chat ")
    assert "%" in line
    assert line.endswith("(settings). Why: a smaller budget.")
    assert log.read_text().index("### Changed") < log.read_text().index("## [1.0]")
    assert {file.name for file in (out / "figures").iterdir()} == {"chat-latency.png", "chat-timeline.png"}
    told = json.loads((out / "regress.json").read_text())
    evidence = told["scenarios"]["chat"]["layers"][0]["evidence"]
    assert "engine.max_num_batched_tokens 8192 → 512" in evidence
    assert "| **p99 ITL (ms)** |" in (out / "report.md").read_text()
    assert run(str(folder), "--out", str(out), "--no-figures")[0] == 0


def test_where_the_reason_cannot_be_recorded_nothing_is_accepted(tmp_path: Path) -> None:
    folder = some_of_the_set(tmp_path / "set", "chat")
    before = (folder / "baseline.json").read_bytes()
    code, said = run(
        str(folder), "--accept", "--why", "moved", "--changelog", str(tmp_path / "no" / "log.md")
    )
    assert code == 2
    assert f"log.md: cannot be written: no folder {tmp_path / 'no'}" in said
    assert "Errno" not in said
    assert (folder / "baseline.json").read_bytes() == before


def test_the_reason_of_a_first_baseline_is_recorded_where_that_is_asked(tmp_path: Path) -> None:
    folder, log = tmp_path / "mine", tmp_path / "log.md"
    folder.mkdir()
    shutil.copy(SET / "tensor-parallel.yaml", folder)
    accept = (str(folder), "--accept", "--why", "a start", "--changelog")
    assert run(*accept, str(tmp_path))[0] == 2
    assert not (folder / "baseline.json").exists()
    assert run(*accept, str(log))[0] == 0
    assert f"- First baseline of {folder}: tensor-parallel. Why: a start." in log.read_text()


def test_a_baseline_that_cannot_be_written_leaves_the_changelog_as_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log.md"
    for before in (None, b"# Changelog\r\n"):
        if before is not None:
            log.write_bytes(before)
        with pytest.raises(InputError, match="cannot be written"), enter(log, "- a line"):
            write_baseline(tmp_path / "nowhere", {}, None)
        assert (log.read_bytes() if log.exists() else None) == before


def test_the_baseline_may_allow_a_difference(tmp_path: Path) -> None:
    folder = some_of_the_set(tmp_path / "set", "chat")
    file = folder / "baseline.json"
    data = json.loads(file.read_text())
    data["scenarios"]["chat"]["metrics"]["p99_itl_ms"] *= 1.01
    file.write_text(json.dumps(data))
    before = read_baseline(folder)
    assert before is not None
    now = observe(scenario_files(folder), before.scenarios)
    (found,) = compared(before, now).failed
    assert [change.metric.key for change in found.beyond] == ["p99_itl_ms"]
    assert [layer.name for layer in found.layers] == ["simulation"]
    data["allow"]["p99_itl_ms"] = 0.02
    file.write_text(json.dumps(data))
    allowing = read_baseline(folder)
    assert allowing is not None
    assert not compared(allowing, now).failed


def test_a_layer_that_moves_no_number_is_told_all_the_same(tmp_path: Path) -> None:
    folder = some_of_the_set(tmp_path / "set", "tensor-parallel")
    file = folder / "baseline.json"
    data = json.loads(file.read_text())
    data["scenarios"]["tensor-parallel"]["probe"]["decisions"]["digest"] = "another"
    file.write_text(json.dumps(data))
    code, said = run(str(folder), "--out", str(tmp_path / "out"), "--no-figures")
    assert code == 1
    assert "FAIL tensor-parallel: no number moved, but scheduler no longer does what it did" in said


def test_scenarios_that_come_and_go_are_told(tmp_path: Path) -> None:
    folder = some_of_the_set(tmp_path / "set", "tensor-parallel", "chat")
    (folder / "chat.yaml").rename(folder / "talk.yaml")
    code, said = run(str(folder), "--out", str(tmp_path / "out"), "--no-figures")
    assert code == 1
    assert "FAIL chat: is in the baseline, but its file is gone" in said
    assert "FAIL talk: is not in the baseline" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--accept"], "error: --accept: needs --why"),
        (["--why", "x"], "error: --why: goes with --accept"),
        (["nowhere"], "error: nowhere: is no folder of scenarios"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], said: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert said in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "baseline.json:1: is not JSON"),
        ('{"format": 7}', "baseline.json: format: must be 1, is 7"),
        (
            '{"format": 1, "allow": {"p99_tfft_ms": -1}, "scenarios": {"chat": {}}}',
            "did you mean 'p99_ttft_ms'",
        ),
        (
            '{"format": 1, "allow": {"p99_tfft_ms": -1}, "scenarios": {"chat": {}}}',
            "must be a share of 0 or more",
        ),
        ('{"format": 1, "allow": {}, "scenarios": {"chat": {}}}', "scenarios.chat: is not whole"),
    ],
)
def test_a_damaged_baseline_is_refused_with_all_its_faults(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "baseline.json").write_text(text)
    with pytest.raises(InputError, match="baseline") as refused:
        read_baseline(tmp_path)
    assert said in str(refused.value)


def test_a_policy_of_ones_own_counts_as_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_victims.py").write_text(
        "class Last:\n    def choose(self, running, needy):\n        return len(running) - 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "set"
    folder.mkdir()
    text = (SET / "preemptions.yaml").read_text()
    text = text.replace("engine:", "engine:\n  victim_policy: {kind: own_victims.Last}")
    (folder / "preemptions.yaml").write_text(text)
    files = scenario_files(folder)
    with pytest.raises(InputError, match="plugin"):
        observe(files, {})
    before = Baseline(observe(files, {}, allow_plugins=True))
    assert not compared(before, observe(files, before.scenarios, allow_plugins=True)).failed
    monkeypatch.setattr("own_victims.Last.choose", lambda self, running, needy: 0)
    (found,) = compared(before, observe(files, before.scenarios, allow_plugins=True)).failed
    assert [layer.name for layer in found.layers] == ["scheduler"]
    assert found.beyond


def test_a_large_scenario_has_no_place_in_a_set(tmp_path: Path) -> None:
    text = (SET / "chat.yaml").read_text().replace("num_requests: 240", "num_requests: 6000")
    (tmp_path / "chat.yaml").write_text(text)
    with pytest.raises(InputError, match="6,000 requests"):
        observe(scenario_files(tmp_path), {})


# --- parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["chat-sessions", "client-classes", "lora", "impatient-clients", "shared-prefix"]
)
def test_recorded_requests_are_the_requests(name: str) -> None:
    scenario = load_scenario(name)
    workload = build_workload(scenario, streams(scenario.seed), Limits(8192))
    data = recorded.requests_as_json(workload)
    again = recorded.requests_as_json(recorded.workload_from_json(json.loads(json.dumps(data))))
    assert again == data
    assert list(recorded.moved(data, again)) == []


def test_a_line_finds_its_place_in_any_changelog() -> None:
    line = "- x"
    assert entered("# Changelog\n", line) == "# Changelog\n\n## [Unreleased]\n\n### Changed\n- x\n"
    assert "### Changed\n- x\n- y\n" in entered("## [Unreleased]\n### Changed\n- y\n", line)
    older = entered("# Changelog\n\n## 1.0\n- z\n", line)
    assert older.index("- x") < older.index("## 1.0")
