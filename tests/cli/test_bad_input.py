"""Every kind of wrong input: exit code 2, one clear line for each fault on stderr, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.cli.helpers import DRYSERVE, SCENARIO, dryserve, write_scenario


def faults(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr of a command that must have failed for wrong input."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()


def test_an_unknown_scenario_names_a_near_one():
    line, *shipped = faults(dryserve("run", "quickstrat"))
    assert "'quickstart'" in line
    assert any("kv-starved" in line for line in shipped)


def test_every_fault_of_a_file_comes_with_its_place(tmp_path):
    text = SCENARIO.replace("rate_per_s: 20", "rate_per_s: -1").replace("gpu: h100-sxm", "gpu: h100-smx")
    lines = faults(dryserve("run", write_scenario(tmp_path, text)))
    assert len(lines) == 2
    assert any("small.yaml:4:" in line and "gpu" in line and "h100-sxm" in line for line in lines)
    assert any("small.yaml:8:" in line and "workload.rate_per_s" in line for line in lines)


def test_a_bad_override_is_blamed_itself(tmp_path):
    (line,) = faults(dryserve("run", write_scenario(tmp_path), "--set", "engine.max_num_seqs=many"))
    assert "--set engine.max_num_seqs=many" in line


def test_a_model_that_does_not_fit_comes_with_arithmetic_and_a_remedy(tmp_path):
    (line,) = faults(dryserve("run", write_scenario(tmp_path), "--set", "model=meta-llama/Llama-3.1-70B"))
    assert "engine.tensor_parallel_size" in line
    assert "GiB" in line
    assert "fits" in line


def test_a_split_that_does_not_divide_the_heads(tmp_path):
    lines = faults(dryserve("run", write_scenario(tmp_path), "--set", "engine.tensor_parallel_size=5"))
    assert all("--set engine.tensor_parallel_size=5: engine.tensor_parallel_size" in line for line in lines)
    assert any("does not divide 32 attention heads" in line for line in lines)


def test_a_pool_too_small_for_anything(tmp_path):
    lines = faults(
        dryserve(
            "run",
            write_scenario(tmp_path),
            "--set",
            "engine.num_gpu_blocks_override=2",
            "--set",
            "engine.block_size=1",
        )
    )
    assert "engine.num_gpu_blocks_override" in lines[0]


def test_a_trace_that_is_not_there(tmp_path):
    (line,) = faults(dryserve("run", "azure-conv-h100", "--set", "workload.path=nowhere.csv", cwd=tmp_path))
    assert "nowhere.csv" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o555)
    (line,) = faults(dryserve("run", "quickstart", "--out", tmp_path / "out"))
    assert "cannot be written" in line


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "out").write_text("mine")
    done = dryserve("run", write_scenario(tmp_path), "--out", tmp_path / "out")
    (line,) = faults(done)
    assert "out: cannot be written" in line
    assert (tmp_path / "out").read_text() == "mine"


def test_a_report_of_no_run(tmp_path):
    (line,) = faults(dryserve("report", tmp_path))
    assert "is no run folder" in line
    (line,) = faults(dryserve("report", tmp_path / "nowhere"))
    assert "no such folder" in line


def test_a_fit_without_a_model():
    lines = faults(dryserve("fit", "--gpu", "h100-sxm"))
    assert any("model" in line and "missing" in line for line in lines)


def test_a_fit_that_does_not():
    (line,) = faults(
        dryserve("fit", "--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--max-model-len", "4096")
    )
    assert "GiB" in line


def test_conform_without_cases(tmp_path):
    (line,) = faults(dryserve("conform", tmp_path))
    assert str(tmp_path) in line


def test_an_unknown_option_is_a_usage_error():
    done = dryserve("run", "quickstart", "--sett", "a=b")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def _heed_ctrl_c() -> None:
    """A shell starts background jobs, and so their children, deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_a_clean_message_and_no_folder(tmp_path):
    long = SCENARIO.replace("num_requests: 40", "num_requests: 1000000")
    command = [*DRYSERVE, "run", str(write_scenario(tmp_path, long)), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,
    ) as process:
        try:
            time.sleep(6)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert output == ""
    assert errors.strip() == "interrupted: nothing was written"
    assert not (tmp_path / "out").exists()


def test_an_override_of_no_scenario_is_not_passed_over():
    (line,) = faults(dryserve("fit", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--set", "seed=1"))
    assert line == "error: --set seed=1: there is no scenario to override; name one, or use the options"


def test_calibrations_and_tables_that_are_none(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe")
    for text in ("[]", '{"parameters": []}', '{"a":' * 5000):
        (tmp_path / "c.json").write_text(text)
        (line,) = faults(dryserve("calibrate", "--check", tmp_path, "--using", tmp_path / "c.json"))
        assert "c.json: not a calibration" in line
    (line,) = faults(dryserve("calibrate", tmp_path, "--gpu", "h100-sxm"))
    assert "binary.csv: not a CSV file" in line


def test_start_up_logs_with_ragged_rows(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("vllm_version,gpu,tp,model,kv_tokens\n1,2\n1,2,3,4,5,6\n")
    done = dryserve("fit", "--check", table)
    assert "skipped: line 2: not as many fields as the header" in done.stdout
    assert "skipped: line 3: not as many fields as the header" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "conform", "calibrate", "validate", "run"])
def test_a_path_longer_than_any_file_name(command):
    (line,) = faults(dryserve(command, "x" * 3000))
    assert "x" * 100 in line
