"""A user's scheduler class decides in place of vLLM's own, and a comparison shows what it changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sim.errors import InputError
from sim.jobs.options import RunOptions
from sim.questions.compare import compare
from sim.scenario import load_scenario
from sim.simulation import simulate
from tests.installed.helpers import INSTALLED, differences, needs_vllm

pytestmark = needs_vllm

PATCH = """
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class Unchanged(AsyncScheduler):
    pass


class Cautious(AsyncScheduler):
    "Runs at most eight requests at once."

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        newer = hasattr(self, "max_num_active_reqs")
        setattr(self, "max_num_active_reqs" if newer else "max_num_running_reqs", 8)


class Synchronous(Scheduler):
    pass


class Tired(AsyncScheduler):
    def update_from_output(self, *args):
        raise ValueError("enough")


class Broken(AsyncScheduler):
    def __init__(self, *args, **kwargs):
        raise RuntimeError("out of order")


class NoScheduler:
    pass
"""
LOAD = ["workload.num_requests=60", f"engine.version='{INSTALLED}'", "engine.async_scheduling=true"]
ON_VLLM = [*LOAD, "engine.scheduler=vllm"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_patch(tmp_path, monkeypatch):
    (tmp_path / "my_patch.py").write_text(PATCH)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_patch", None)


def run(name: str | None = None, *more: str):
    cls = [] if name is None else [f"engine.scheduler_cls=my_patch.{name}"]
    return simulate(load_scenario("kv-starved", [*ON_VLLM, *cls, *more]), allow_plugins=True)


def refusal(*overrides: str, allow_plugins: bool = True) -> str:
    with pytest.raises(InputError) as caught:
        simulate(load_scenario("kv-starved", [*ON_VLLM, *overrides]), allow_plugins=allow_plugins)
    (fault,) = map(str, caught.value.faults)
    return fault


def test_a_class_that_changes_nothing_changes_no_result():
    assert differences(run(), run("Unchanged")) == []


def test_a_class_decides():
    usual, cautious = run(), run("Cautious")
    assert usual.steps["num_running"].max() > 8
    assert cautious.steps["num_running"].max() == 8
    assert any("my_patch.Cautious" in note for note in cautious.notes)


def test_a_comparison_of_two_classes_shows_what_differs_and_what_does_not():
    found = compare(
        "kv-starved",
        "engine.scheduler_cls=my_patch.Unchanged",
        "mirror",
        "engine.scheduler_cls=my_patch.Cautious",
        overrides=ON_VLLM,
        replications=3,
        options=RunOptions(workers=1, store=None, allow_plugins=True),
    )
    assert found.identical == ["mirror"]
    assert found.failed == []
    assert (
        "Identical to scheduler_cls=my_patch.Unchanged" in found.as_text()
        or "Identical to A" in found.as_text()
    )
    assert not found.nothing_shown


def test_the_command_says_that_mirror_and_installed_are_identical(in_a_folder_with_a_patch):
    command = "import sys; from sim.cli import main; sys.exit(main())"
    overrides = (word for each in LOAD for word in ("--set", each))
    argv = ["compare", "kv-starved", "mirror", "installed", "--replications", "2", "--no-figures", *overrides]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", command, *argv],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "Identical to mirror, every number and every request, under 2 seeds: installed." in done.stdout


def test_code_of_the_users_own_must_be_allowed():
    told = refusal("engine.scheduler_cls=my_patch.Unchanged", allow_plugins=False)
    assert (
        "engine.scheduler_cls: my_patch.Unchanged is code of your own; allow it with --allow-plugins" in told
    )


def test_classes_of_vllm_itself_need_no_leave():
    own = "engine.scheduler_cls=vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    scenario = load_scenario("kv-starved", [*ON_VLLM, own])
    assert simulate(scenario).summary["completed"] == 60


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_patch.Missing", "my_patch.Missing is no class: module my_patch has no class Missing"),
        ("no_such_patch.Missing", "no_such_patch.Missing cannot be imported"),
        ("my_patch.NoScheduler", "my_patch.NoScheduler has no method schedule"),
        ("my_patch.Broken", "does not make this engine: RuntimeError: out of order"),
        ("my_patch.Synchronous", "is no AsyncScheduler, and async_scheduling is true"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_clear_error(name, told):
    assert told in refusal(f"engine.scheduler_cls={name}")


def test_a_class_that_fails_on_the_way_is_told_with_its_place():
    told = refusal("engine.scheduler_cls=my_patch.Tired")
    assert "engine.scheduler_cls: the installed scheduler failed: ValueError: enough (my_patch.py:" in told


def test_a_synchronous_class_runs_where_the_engine_is_synchronous():
    sync = "engine.async_scheduling=false"
    assert differences(run(None, sync), run("Synchronous", sync)) == []
