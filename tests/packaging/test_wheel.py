"""What a wheel holds, and that it works where others have packages of the same names as our folders."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.recordings import fake_vllm

REPO = Path(__file__).resolve().parents[2]
OURS = ("sim", "scheduler", "cost_models", "scenarios")
FOREIGN = 'raise ImportError("this is the package of somebody else")\n'
Done = subprocess.CompletedProcess[str]
RECORDED = sorted((REPO / "tests" / "golden").rglob("*.json.gz"))[::28][:20]


class Installation:
    """A fresh environment with the wheel; the libraries are those of the environment that runs the tests."""

    def __init__(self, folder: Path, *, compiled: bool = False) -> None:
        self.folder = folder
        wheels = folder / "wheels"
        _pip(["wheel", "--no-deps", "--no-build-isolation", "-w", wheels, REPO], compiled=compiled)
        venv.create(folder / "env", with_pip=False)
        self.python = folder / "env" / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "env" / "lib" / version / "site-packages"
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        (self.packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
        (self.wheel,) = wheels.glob("*.whl")
        _pip(["--python", self.python, "install", "--no-deps", self.wheel])

    def run(self, *arguments: object) -> Done:
        """The installed command, from a folder that has nothing to do with the checkout."""
        command = [self.python.with_name("dryserve"), *map(str, arguments)]
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


def _pip(arguments: Sequence[object], *, compiled: bool = False) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    environment = os.environ | {"DRYSERVE_COMPILE": "1" if compiled else "0"}
    done = subprocess.run(
        [*pip, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    pytest.importorskip("pip", reason="builds a wheel with pip")
    pytest.importorskip("hatchling", reason="builds a wheel with hatchling")
    return Installation(tmp_path_factory.mktemp("wheel"))


def test_it_has_one_name_at_the_top(installed: Installation) -> None:
    names = {path.name for path in installed.packages.iterdir()} - {"libraries.pth", "__pycache__"}
    assert names == {"dryserve", installed.wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    for package in OURS:
        assert (installed.packages / "dryserve" / package / "__init__.py").is_file()


def test_it_runs_the_quickstart_and_recorded_engine_runs_beside_packages_of_the_same_names(
    installed: Installation,
) -> None:
    for package in OURS:
        (installed.packages / package).mkdir()
        (installed.packages / package / "__init__.py").write_text(FOREIGN)

    done = installed.run("run", "quickstart", "--set", "workload.duration_s=60", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "Successful requests:" in done.stdout

    done = installed.run("conform", *RECORDED)
    assert done.returncode == 0, done.stderr
    assert f"{len(RECORDED)} of {len(RECORDED)} cases identical" in done.stdout
    assert len(RECORDED) == 20


def test_a_short_run_loads_no_more_than_in_a_checkout(installed: Installation) -> None:
    told = [installed.python, "-X", "importtime", "-m", "dryserve", "bench", "--requests", "3", "--quiet"]
    done = subprocess.run(told, cwd=installed.folder, capture_output=True, text=True, check=True)
    loaded = done.stderr
    assert "dryserve.sim.simulation" in loaded
    assert not {name for name in ("scipy", "pandas", "matplotlib") if f" {name}\n" in loaded}


def test_the_recorder_is_in_it_and_loads_nothing_else(installed: Installation, tmp_path: Path) -> None:
    fake_vllm.install(tmp_path)
    told = [installed.python, "-c", fake_vllm.LOADS_NOTHING_ELSE]
    done = subprocess.run(
        told,
        cwd=installed.folder,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "recorder loaded alone\n", done.stderr


def test_several_processes_find_the_package_too(installed: Installation) -> None:
    done = installed.run(
        "sweep", "kv-starved", "--grid", "max_num_seqs=8,16", "--requests", "20", "--replications", "1",
        "--workers", "2", "--no-figures",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_a_compiled_wheel_gives_the_same_bytes(tmp_path: Path, installed: Installation) -> None:
    compiled = Installation(tmp_path, compiled=True)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert (compiled.packages / "dryserve" / "scheduler" / f"scheduler{suffix}").is_file()
    screens = [each.run("run", "quickstart", "--no-report").stdout for each in (installed, compiled)]
    assert screens[0] == screens[1]
    tables = [
        {path.name: path.read_bytes() for path in sorted(each.folder.glob("runs/*/*.csv"))[-3:]}
        for each in (installed, compiled)
    ]
    assert tables[0] == tables[1]
    assert {"requests.csv", "steps.csv"} <= set(tables[0])
    assert "20 of 20 cases identical" in compiled.run("conform", *RECORDED).stdout
