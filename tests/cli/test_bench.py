"""`dryserve bench`: what it prints, on little work."""

from __future__ import annotations

from typer.testing import CliRunner

from sim.cli.commands import app
from sim.experiments import bench


def run(*options: object) -> list[str]:
    done = CliRunner().invoke(app, ["bench", "--requests", "3", *map(str, options)])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_one_line_where_it_should_be_quiet():
    (line,) = run("--quiet")

    assert line.startswith("3 requests, ")


def test_growth_has_a_row_for_each_size(monkeypatch):
    monkeypatch.setattr(bench, "GROWTH", (2, 4))
    lines = run("--growth")
    head = next(number for number, line in enumerate(lines) if "us/request" in line)

    assert lines[0].startswith("3 requests at 8/s, 1 replica")
    assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["2", "4"]
    assert len(lines) == head + 4


def test_a_profile_tells_the_share_of_each_phase():
    lines = run("--profile")
    head = next(number for number, line in enumerate(lines) if line.startswith("phase"))
    shares = [float(line[36:].split("%")[0]) for line in lines[head + 1 : -1]]

    assert abs(sum(shares) - 100.0) < 1.0
