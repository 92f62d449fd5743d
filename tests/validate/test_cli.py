"""`dryserve validate` and `dryserve calibrate` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from tests.validate.helpers import PLAIN, write_requests, write_runs

COUNTED = {"tpot_mean_ms": "7", "ttft_mean_ms": "30", "quality": "A"}


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_validate_reports_by_source_and_ends_with_a_line_a_metric(tmp_path: Path) -> None:
    table = write_runs(tmp_path, PLAIN | COUNTED, PLAIN | COUNTED | {"run_id": "other", "gpu": "h1000"})
    code, out, _ = run("validate", str(table), "--out", str(tmp_path / "out"))
    assert code == 0
    assert "1 of 2 runs simulated" in " ".join(out.split())
    assert "runs on h100-sxm" in out
    assert "line 3: other: " in out
    assert [line.split(" median")[0] for line in out.splitlines()[-2:]] == [
        "validate: ttft_mean",
        "validate: tpot_mean",
    ]
    assert "over 1 rows" in out.splitlines()[-1]
    assert (tmp_path / "out" / "validation.csv").read_text().count("\n") == 3


def test_a_validation_leaves_pages_numbers_and_a_figure_of_each_run_measured_request_by_request(
    tmp_path: Path,
) -> None:
    write_requests(tmp_path, "r.csv", "arrival_s,in_tok,out_tok,ttft_ms,e2e_ms\n0,50,5,20,60\n1,60,5,21,61\n")
    trace = {
        "load": "trace",
        "num_requests": "2",
        "prompt": "file",
        "output": "file",
        "requests_file": "r.csv",
    }
    table = write_runs(
        tmp_path, PLAIN | COUNTED | trace | {"run_id": "a/1"}, PLAIN | COUNTED | {"gpu": "h1000"}
    )
    code, out, _ = run("validate", str(table), "--json", "--out", str(tmp_path / "out"))
    assert code == 0
    told = json.loads(out)
    assert (told["num_runs"], told["num_simulated"]) == (2, 1)
    assert told["errors"]["tpot_mean"]["rows"] == 1
    assert "h1000" in told["not_simulated"]["plain"]
    page = (tmp_path / "out" / "report.md").read_text()
    assert "## runs on h100-sxm" in page
    assert "![a-1](figures/a-1.png)" in page
    assert (tmp_path / "out" / "figures" / "a-1.png").read_bytes().startswith(b"\x89PNG")


def test_validate_tells_every_slip_of_the_table_and_exits_2(tmp_path: Path) -> None:
    table = write_runs(tmp_path, PLAIN | {"tp": "two"}, PLAIN | {"run_id": "b", "prompt": "long"})
    code, _, err = run("validate", str(table))
    assert code == 2
    assert f"error: {table}:2: tp: 'two' is not a number" in err
    assert f"error: {table}:3: prompt: 'long' is not a length" in err


def test_validate_exits_1_when_nothing_could_be_simulated(tmp_path: Path) -> None:
    table = write_runs(tmp_path, PLAIN | {"gpu": "h1000"})
    code, out, _ = run("validate", str(table), "--out", str(tmp_path / "out"))
    assert code == 1
    assert "h1000" in out


def test_a_result_file_is_validated_once_it_is_told_what_it_ran_on(tmp_path: Path) -> None:
    result = tmp_path / "mine.json"
    result.write_text(
        json.dumps(
            {
                "model_id": "meta-llama/Llama-3.1-8B",
                "request_rate": "inf",
                "max_concurrency": 2,
                "completed": 4,
                "total_input_tokens": 400,
                "total_output_tokens": 40,
                "mean_ttft_ms": 40.0,
                "mean_tpot_ms": 8.0,
            }
        )
    )
    code, out, _ = run("validate", str(result), "--out", str(tmp_path / "out"))
    assert code == 1
    assert "gpu is unknown" in out
    code, out, _ = run(
        "validate",
        str(result),
        "--set",
        "gpu=h100-sxm",
        "--set",
        "engine_version=0.16.0",
        "--out",
        str(tmp_path / "out"),
    )
    assert code == 0
    assert "validate: tpot_mean median" in out


def test_a_set_column_that_does_not_exist_is_told(tmp_path: Path) -> None:
    code, _, err = run("validate", str(write_runs(tmp_path, PLAIN)), "--set", "gpus=8")
    assert code == 2
    assert "gpus" in err


def test_bands_can_be_written_from_a_validation(tmp_path: Path) -> None:
    rows = [PLAIN | COUNTED | {"run_id": f"r{i}"} for i in range(3)]
    bands = tmp_path / "bands.json"
    code, _, _ = run(
        "validate", str(write_runs(tmp_path, *rows)), "--bands", str(bands), "--out", str(tmp_path / "out")
    )
    assert code == 0
    kinds = json.loads(bands.read_text())["bands"]
    assert kinds["h100-sxm, dense, saturated"]["tpot_mean"][2] == 3


def test_calibrate_without_tables_says_what_it_needs() -> None:
    code, _, err = run("calibrate")
    assert code == 2
    assert "--check" in err


def test_calibrate_check_judges_the_shipped_fits(shared_dir: Path) -> None:
    code, out, _ = run("calibrate", "--check", str(shared_dir / "calibration" / "send_recv.csv"))
    assert code == 0
    assert "send_recv" in out


def test_calibrate_fits_one_gpu_and_the_file_reads_back(shared_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit.json"
    table = str(shared_dir / "calibration" / "send_recv.csv")
    code, text, _ = run("calibrate", table, "--gpu", "h100-sxm", "--out", str(out))
    assert code == 0
    assert "errors on shapes that were not fitted" in text
    code, text, _ = run("calibrate", "--check", table, "--using", str(out))
    assert code == 0
    assert "h100-sxm" in text


def test_calibrate_asks_which_gpu_where_the_tables_have_several(shared_dir: Path) -> None:
    code, _, err = run("calibrate", str(shared_dir / "calibration" / "send_recv.csv"))
    assert code == 2
    assert "--gpu" in err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_missing_file_is_one_line_and_no_traceback(command: str, tmp_path: Path) -> None:
    arguments = ["--gpu", "h100-sxm"] if command == "calibrate" else []
    code, _, err = run(command, str(tmp_path / "absent.csv"), *arguments)
    assert code == 2
    assert err.count("\n") == 1
