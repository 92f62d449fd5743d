"""`dryserve bench`: what it prints, on little work."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from sim.evidence import bench


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
    assert " times as slow as above)" in lines[-1]


def test_a_trace_says_how_many_requests_come_and_when(tmp_path):
    trace = tmp_path / "work.csv"
    run("--write-trace", trace)
    options = ["bench", "--trace", str(trace), "--requests", "9", "--rate", "-1", "--growth"]
    done = CliRunner().invoke(app, options)

    assert (done.exit_code, done.output.count("error: ")) == (2, 4)
    assert CliRunner().invoke(app, [*options[:3], "--quiet"]).output.startswith("3 requests, ")


def test_a_trace_that_is_not_written_whole_is_not_there(tmp_path, monkeypatch):
    def broken(table):
        yield "TIMESTAMP,ContextTokens,GeneratedTokens"
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_azure", broken)
    with pytest.raises(KeyboardInterrupt):
        bench.write_trace(bench.Work(requests=3).scenario(), tmp_path / "work.csv")

    assert list(tmp_path.iterdir()) == []
