"""The names that `sim` offers, in the ways in which a script or a notebook asks for them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

RUN = """
scenario = load_scenario("quickstart", ["cluster.replicas=1", "workload.duration_s=2"])
assert simulate(scenario).summary["completed"] > 0
"""


@pytest.mark.parametrize(
    "imports",
    [
        "from sim import load_scenario, simulate",
        "from sim import load_scenario, simulate\nfrom sim import load_scenario, simulate",
        "from sim.simulation import RunResult\nfrom sim import load_scenario, simulate",
        "import sim\nimport sim.simulation\nload_scenario, simulate = sim.load_scenario, sim.simulate",
    ],
    ids=["as in the README", "a cell run twice", "after its module", "as attributes"],
)
def test_simulate_is_the_function(imports: str) -> None:
    done = subprocess.run([sys.executable, "-c", imports + RUN], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_importing_sim_alone_loads_no_heavy_library() -> None:
    code = "import sys, sim; print(sorted({'numpy', 'pandas', 'pydantic', 'simpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["sim", "dryserve"])
def test_tab_completion_shows_the_public_names_and_each_of_them_loads(package: str) -> None:
    module = importlib.import_module(package)

    assert {"simulate", "sweep", "figures", "cost_models", "error_band"} <= set(dir(module))
    assert all(getattr(module, name) is not None for name in dir(module))
