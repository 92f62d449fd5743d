"""What a command loads and sets before it works: a short run is mostly its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.helpers import dryserve, write_scenario

HEAVY = {"matplotlib", "pandas", "scipy", "joblib", "rich", "distributed", "numpy.ma", "numpy.f2py"}
LIBRARIES = HEAVY | {"numpy", "simpy", "ruamel.yaml", "tomllib"}  # pydantic is typer's business
OURS = {"scheduler", "cost_models", "sim.scenario", "sim.cluster", "sim.workload", "sim.simulation"}

TELL = """
import json, os, sys
from sim.cli import main
try:
    main()
except SystemExit:
    pass
told = {"modules": sorted(sys.modules), "threads": os.environ.get("OPENBLAS_NUM_THREADS")}
print(json.dumps(told), file=sys.stderr)
"""


def start(*arguments: object, env: dict[str, str] | None = None) -> tuple[set[str], str | None]:
    """The modules that are loaded when a command has ended, and how many threads BLAS was given."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", TELL, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=own | {"PYTHONPATH": os.pathsep.join(sys.path)} | (env or {}),
    )
    told = json.loads(done.stderr.splitlines()[-1])
    return set(told["modules"]), told["threads"]


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["rnu"], []])
def test_help_and_mistakes_load_nothing_that_simulates(arguments):
    modules, _ = start(*arguments)

    assert modules & (LIBRARIES | OURS) == set()


def test_bench_loads_no_tables_no_figures_no_parser():
    modules, _ = start("bench", "--requests", 3, "--quiet")

    assert {"numpy", "sim.simulation"} <= modules
    assert modules & (HEAVY | {"ruamel.yaml"}) == set()


def test_a_run_is_written_down_without_pandas(tmp_path):
    modules, _ = start("run", write_scenario(tmp_path), "--no-report", "--out", tmp_path / "runs")

    assert "sim.results.run_folder" in modules
    assert modules & HEAVY == set()


def test_blas_gets_one_thread():
    _, threads = start("--version")

    assert threads == "1"


@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"])
def test_threads_that_the_user_has_set_are_left_alone(name):
    _, threads = start("--version", env={name: "3"})

    assert threads == ("3" if name == "OPENBLAS_NUM_THREADS" else None)


def test_every_command_has_its_help():
    listed = dryserve("--help").stdout.partition("Commands:")[2].split("\n")
    names = [line.split()[0] for line in listed if line.strip()]

    assert {"run", "compare-releases", "bench"} < set(names)
    for name in names:
        done = dryserve(name, "--help")
        assert done.returncode == 0, done.stderr
        assert f" {name} [OPTIONS]" in done.stdout
