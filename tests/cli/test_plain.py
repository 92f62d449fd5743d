"""`--plain` is a slower way to the same folder, byte for byte."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from sim.cli.commands import app


def test_a_plain_run_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, options in (("planned", []), ("plain", ["--plain"])):
        command = ["run", "quickstart", "--no-report", "--set", "workload.num_requests=60"]
        command += ["--set", "workload.duration_s=null", "--out", str(tmp_path / name), *options]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    planned, plain = (sorted((tmp_path / name).rglob("*.*")) for name in ("planned", "plain"))
    assert len(planned) >= 4
    assert [path.name for path in planned] == [path.name for path in plain]
    for one, two in zip(planned, plain, strict=True):
        if one.is_file():
            assert one.read_bytes() == two.read_bytes()
