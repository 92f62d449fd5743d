"""`dryserve calibrate RECORDING` as a user runs it: from a recording to runs with the machine's own times."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cost_models import load_calibration
from tests.cli.helpers import dryserve
from tests.conftest import REPO
from tests.own_machine.machines import Noise, engine_on, record

SCENARIO = """\
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {async_scheduling: false, max_model_len: 8192}
workload:
  kind: poisson
  rate_per_s: 4
  num_requests: 60
  lengths: {kind: fixed, prompt_tokens: 800, output_tokens: 100}
"""
SLOW = {"step_host_s": 5e-3, "memory_gain": 0.8, "compute_gain": 0.75}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and a recording made on a machine that is slower than shipped."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.yaml").write_text(SCENARIO, encoding="utf-8")
    record(engine_on(folder, SLOW, async_scheduling=False), folder / "mine.jsonl.gz", Noise())
    return folder


def with_header(path: Path, to: Path, **changes: object) -> Path:
    """The recording with other settings in its header."""
    head, *rest = gzip.decompress(path.read_bytes()).decode().split("\n")
    header = json.loads(head)
    header["settings"] |= changes
    to.write_bytes(gzip.compress("\n".join([json.dumps(header), *rest]).encode()))
    return to


def tpot_ms(folder: Path, *arguments: str) -> float:
    done = dryserve("run", "mine.yaml", "--no-report", "--json", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["mean_tpot_ms"])


def test_a_run_under_the_calibration_takes_the_times_of_the_recorded_machine(folder: Path) -> None:
    done = dryserve("calibrate", "mine.jsonl.gz", "--out", "own.json", "--no-figures", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "written: own.json; a scenario names it with calibration: own.json" in done.stderr
    assert "all_reduce_gain left as it was: tensor parallel size 1" in done.stdout.replace("\n  ", " ")
    true = tpot_ms(folder, "--set", "calibration=machine.json")
    shipped, own = tpot_ms(folder), tpot_ms(folder, "--set", "calibration=own.json")
    assert shipped < 0.75 * true
    assert own == pytest.approx(true, rel=0.02)


def test_the_calibration_says_what_it_rests_on(folder: Path) -> None:
    dryserve("calibrate", "mine.jsonl.gz", "--out", "told.json", "--no-figures", cwd=folder)
    fitted = load_calibration(folder / "told.json")
    assert fitted.machine.fitted == ("step_host_s", "request_host_s", "memory_gain", "compute_gain")
    assert fitted.borrowed["machine.all_reduce_gain"] == "h100-sxm"
    assert "recording of mine.jsonl.gz: meta-llama/Llama-3.1-8B on h100-sxm, vLLM 0.16.0" in fitted.source
    assert "as a recording of one machine shows them" in fitted.note
    assert any(row.operator.startswith("step, decode, batch") for row in fitted.residuals)
    document = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    low, high = document["intervals_95_percent"]["memory_gain"]
    assert low < document["machine"]["memory_gain"] < high
    assert document["left_as_it_was"]["all_reduce_gain"].startswith("tensor parallel size 1")


def test_a_calibration_of_a_machine_can_be_fitted_anew(folder: Path) -> None:
    """What an older recording showed, and a newer does not, stays."""
    path = folder / "older.json"
    header = {"id": "older", "gpu": "h100-sxm", "source": "an older recording", "date": "2026-11-01"}
    path.write_text(json.dumps({**header, "machine": {"all_reduce_gain": 0.8, "memory_gain": 1.2}}))
    done = dryserve(
        *("calibrate", "mine.jsonl.gz", "--using", "older.json", "--out", "newer.json", "--no-figures"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    machine = load_calibration(folder / "newer.json").machine
    assert machine.all_reduce_gain == 0.8
    assert machine.memory_gain == pytest.approx(0.8, rel=0.1)
    assert set(machine.fitted) >= {"all_reduce_gain", "memory_gain"}


def test_the_answer_has_tables_pages_and_a_figure(folder: Path) -> None:
    done = dryserve("calibrate", "mine.jsonl.gz", "--folder", "answers", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["constants"]["memory_gain"]["low"] < 0.8 < told["constants"]["memory_gain"]["high"]
    written = {path.name for path in (folder / "answers" / "mine").iterdir()}
    assert written >= {"machine.json", "step_kinds.csv", "constants.csv", "held_out_steps.csv"}
    assert written >= {"report.md", "report.html"}
    assert (folder / "answers" / "mine" / "figures" / "step_times.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "arguments", "told"),
    [
        (
            {},
            ["--model", "Qwen/Qwen3-14B"],
            "of model meta-llama/Llama-3.1-8B, not of Qwen/Qwen3-14B",
        ),
        ({}, ["--gpu", "a100-sxm-80gb"], "is a recording of gpu h100-sxm, not of a100-sxm-80gb"),
        (
            {"model": "/models/mine"},
            [],
            "model '/models/mine', which is not known; name it with --model",
        ),
        ({"gpu": None}, [], "does not say its gpu; name it with --gpu"),
        ({"config": {"spec": {"kind": "draft_model", "k": 2}}}, [], "name it with --scenario"),
        ({}, ["--set", "engine.max_numseqs=3"], "unknown field"),
        ({}, ["--scenario", "nobody"], "no scenario 'nobody'"),
        ({}, ["--using", "gone.json"], "gone.json"),
    ],
)
def test_a_recording_that_does_not_fit_what_is_named_is_one_clear_error(
    changes: dict[str, object], arguments: list[str], told: str, folder: Path
) -> None:
    with_header(folder / "mine.jsonl.gz", folder / "other.jsonl.gz", **changes)
    done = dryserve("calibrate", "other.jsonl.gz", *arguments, cwd=folder)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_the_recording_calls_by_a_path_can_be_named(folder: Path) -> None:
    with_header(folder / "mine.jsonl.gz", folder / "path.jsonl.gz", model="/models/mine", gpu="NVIDIA Mine")
    named = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "h100-sxm", "--no-figures", "--out", "p.json")
    done = dryserve("calibrate", "path.jsonl.gz", *named, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_recordings_of_two_kinds_of_gpus_are_not_fitted_together(folder: Path) -> None:
    with_header(folder / "mine.jsonl.gz", folder / "a100.jsonl.gz", gpu="NVIDIA A100-SXM4-80GB")
    done = dryserve("calibrate", "mine.jsonl.gz", "a100.jsonl.gz", cwd=folder)
    assert done.returncode == 2
    assert "a100.jsonl.gz: is of another engine than mine.jsonl.gz: GPU NVIDIA A100-SXM4-80GB" in done.stderr


def test_recordings_of_equal_engines_are_fitted_together(folder: Path) -> None:
    record(engine_on(folder, SLOW, async_scheduling=False, seed=2), folder / "more.jsonl.gz", Noise(seed=9))
    arguments = ("mine.jsonl.gz", "more.jsonl.gz", "--out", "both.json", "--no-figures", "--json")
    both = json.loads(dryserve("calibrate", *arguments, cwd=folder).stdout)
    one = json.loads(dryserve("calibrate", *arguments[::2][:1], *arguments[2:], cwd=folder).stdout)
    assert both["fitted_steps"] > 1.6 * one["fitted_steps"]


def test_a_recording_without_times_is_one_clear_error(folder: Path) -> None:
    head, *rest = gzip.decompress((folder / "mine.jsonl.gz").read_bytes()).decode().splitlines()
    lines = [json.loads(line) for line in rest]
    timeless = [
        {**line, "t": [0, 0] if isinstance(line["t"], list) else 0} if "t" in line else line for line in lines
    ]
    texts = [head, *(json.dumps(line) for line in timeless)]
    (folder / "timeless.jsonl.gz").write_bytes(gzip.compress(("\n".join(texts) + "\n").encode()))
    done = dryserve("calibrate", "timeless.jsonl.gz", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "error: timeless.jsonl.gz: has no times of steps\n"


def test_a_file_that_is_no_recording_is_one_clear_error(folder: Path) -> None:
    (folder / "broken.jsonl.gz").write_bytes(b"no gzip at all")
    done = dryserve("calibrate", "broken.jsonl.gz", cwd=folder)
    assert done.returncode == 2
    assert "broken.jsonl.gz" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_that_can_be_fitted_writes_no_calibration_and_exits_1(folder: Path) -> None:
    record(engine_on(folder, {}, workload={"num_requests": 2}), folder / "short.jsonl.gz")
    done = dryserve("calibrate", "short.jsonl.gz", "--out", "short.json", "--no-figures", cwd=folder)
    assert done.returncode == 1
    assert "200 are the fewest" in done.stdout
    assert not (folder / "short.json").exists()


@pytest.mark.parametrize("name", ["llm", "llm_async"])
def test_a_recording_of_a_real_engine_has_times_by_kind_and_is_too_short_to_fit(
    name: str, folder: Path
) -> None:
    """A tiny model on a CPU: held against some GPU, for the times are read alike."""
    recording = REPO / "tests" / "recordings" / "data" / "0.16.0" / f"{name}.jsonl.gz"
    named = ("--model", "meta-llama/Llama-3.2-1B", "--gpu", "l4", "--no-figures", "--json")
    done = dryserve("calibrate", recording, *named, "--out", "cpu.json", cwd=folder)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert all("200 are the fewest" in each["left_because"] for each in told["constants"].values())
    by_kind = {row["kind"]: row for row in told["held_out_errors"]}
    mixed, alone = by_kind["decode and prefill, up to 512 tokens"], by_kind["decode, batch 1"]
    assert mixed["measured_s"] > alone["measured_s"] > 1e-4
    assert not (folder / "cpu.json").exists()
