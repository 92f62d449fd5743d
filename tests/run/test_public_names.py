"""The names that `dryserve` offers, in the ways in which a script or a notebook asks for them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import sim

SIM = sim.__name__

RUN = """
scenario = load_scenario("quickstart", ["cluster.replicas=1", "workload.duration_s=2"])
assert simulate(scenario).summary["completed"] > 0
"""


@pytest.mark.parametrize(
    "imports",
    [
        "from dryserve import load_scenario, simulate",
        "from dryserve import load_scenario, simulate\nfrom dryserve import load_scenario, simulate",
        f"from {SIM}.simulation import RunResult\nfrom {SIM} import load_scenario, simulate",
        f"import {SIM}.simulation\nfrom dryserve import load_scenario, simulate",
        "import dryserve as ds\nload_scenario, simulate = ds.load_scenario, ds.simulate",
    ],
    ids=["by name", "a cell run twice", "after its module", "after its module, by name", "as in the README"],
)
def test_simulate_is_the_function(imports: str) -> None:
    done = subprocess.run([sys.executable, "-c", imports + RUN], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_importing_it_alone_loads_no_heavy_library() -> None:
    code = "import sys, dryserve; print(sorted({'numpy', 'pandas', 'pydantic', 'simpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", [SIM, "dryserve"])
def test_tab_completion_shows_the_public_names_and_each_of_them_loads(package: str) -> None:
    module = importlib.import_module(package)

    assert {"simulate", "sweep", "figures", "cost_models", "error_band"} <= set(dir(module))
    assert all(getattr(module, name) is not None for name in dir(module))
