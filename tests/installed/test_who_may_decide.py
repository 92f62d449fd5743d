"""What cannot be run on an installed vLLM is refused at once and by name; none need be installed for this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sim.errors import InputError
from sim.installed import present
from sim.jobs.options import RunOptions
from sim.jobs.store import point_key
from sim.questions.compare import compare
from sim.scenario import load_scenario
from sim.setup import engine_setup
from tests.installed.helpers import forget_what_is_installed, pretend

SMALL = ["workload.num_requests=20"]
ON_VLLM = [*SMALL, "engine.scheduler=vllm"]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Pretends that a release is installed, or that none is."""
    forget_what_is_installed()

    def pretended(version: str | None) -> Path | None:
        package = None if version is None else pretend(tmp_path, version)
        monkeypatch.setattr(
            present,
            "find_spec",
            lambda name: package and SimpleNamespace(origin=str(package / "__init__.py")),
        )
        return package

    yield pretended
    forget_what_is_installed()


@pytest.fixture
def nothing_installed(install):
    install(None)


def refusal(overrides: list[str]) -> list[str]:
    """The faults at load, or at the latest when the engine is made."""
    with pytest.raises(InputError) as caught:
        engine_setup(load_scenario("kv-starved", overrides))
    return [str(fault) for fault in caught.value.faults]


def test_without_vllm_the_scenario_is_refused_and_told_how_to_get_it(nothing_installed):
    (fault,) = refusal(ON_VLLM)
    assert "engine.scheduler: vllm is not installed here" in fault
    assert "dryserve[vllm]" in fault
    assert "0.16.0 and 0.33.0" in fault


def test_the_command_ends_with_2_and_without_a_traceback(tmp_path):
    """A package that cannot be imported is as bad as none."""
    pretend(tmp_path, "0.16.0")
    run = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sim.cli import main; sys.exit(main())"
    argv = ["run", "kv-starved", *(word for each in ON_VLLM for word in ("--set", each))]
    done = subprocess.run(
        [sys.executable, "-c", run, str(tmp_path), *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "vLLM 0.16.0 cannot be driven: ImportError: a pretended vLLM" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_comparison_is_refused_before_anything_runs(nothing_installed):
    seen = []
    options = RunOptions(workers=1, store=None, on_progress=seen.append)
    with pytest.raises(InputError, match="vllm is not installed"):
        compare("kv-starved", "mirror", "installed", overrides=SMALL, replications=1, options=options)
    assert seen == []


def test_the_version_of_the_scenario_must_be_the_installed_one(install):
    install("0.33.0")
    (fault,) = refusal(ON_VLLM)
    assert "engine.version: is 0.16.0, but the installed vLLM is 0.33.0" in fault
    assert "give engine.version: 0.33.0" in fault


def test_a_release_that_was_not_tried_says_so_in_the_results(install):
    install("0.24.0")
    notes = present.notes(load_scenario("kv-starved", [*ON_VLLM, "engine.version='0.24.0'"]))
    assert notes[0] == "the installed vLLM 0.24.0 decided, not the mirror"
    assert "0.24.0 was not tried with this adapter (tried: 0.16.0, 0.33.0)" in notes[1]


def test_a_release_that_was_tried_needs_no_warning(install):
    install("0.16.0")
    assert len(present.notes(load_scenario("kv-starved", ON_VLLM))) == 1


@pytest.mark.parametrize(
    ("setting", "path", "told"),
    [
        (
            "engine.victim_policy=least_computed",
            "engine.victim_policy",
            "least_computed is of the mirror alone",
        ),
        ("engine.waiting_order=fair", "engine.waiting_order", "fair is of the mirror alone"),
        (
            "engine.preemption_mode={kind: offload}",
            "engine.preemption_mode",
            "offload is of the mirror alone",
        ),
        ("engine.rules={holders_first: true}", "engine.rules", "is of the mirror alone"),
    ],
)
def test_what_only_the_mirror_can_do_is_refused_by_name(setting, path, told):
    setting = setting.replace("=least_computed", "={kind: least_computed}").replace("=fair", "={kind: fair}")
    with pytest.raises(InputError) as caught:
        load_scenario("kv-starved", [*ON_VLLM, setting])
    (fault,) = map(str, caught.value.faults)
    assert f"{path}: {told}" in fault


def test_the_policies_that_vllm_has_itself_may_be_named():
    named = "engine.waiting_order={kind: priority}"
    load_scenario("kv-starved", [*ON_VLLM, "engine.scheduling_policy=priority", named])


def test_a_scheduler_class_alone_is_a_mistake():
    with pytest.raises(InputError, match=r"engine\.scheduler_cls: takes effect with engine\.scheduler: vllm"):
        load_scenario("kv-starved", [*SMALL, "engine.scheduler_cls=my_patch.Scheduler"])


def test_results_are_kept_apart_by_version_patch_and_class(install, tmp_path, monkeypatch):
    """The same scenario on another engine has another name in the store; the mirror's stays."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_patch.py").write_text("one = 1\n")
    package = install("0.16.0")
    on_mirror, scenario = load_scenario("kv-starved", SMALL), load_scenario("kv-starved", ON_VLLM)
    patched = load_scenario("kv-starved", [*ON_VLLM, "engine.scheduler_cls=my_patch.Scheduler"])
    mirror, keys = point_key(on_mirror), {point_key(scenario), point_key(patched)}
    (tmp_path / "my_patch.py").write_text("one = 2\n")
    keys.add(point_key(patched))
    (package / "v1" / "core" / "decides.py").write_text("ORDER = 'patched'\n")
    present._digest.cache_clear()
    keys.add(point_key(scenario))
    monkeypatch.setenv(present.RUNNER, "0")
    keys.add(point_key(scenario))
    assert len(keys) == 5
    assert point_key(on_mirror) == mirror
    assert mirror not in keys


def test_the_mirror_never_imports_vllm(tmp_path):
    pretend(tmp_path, "0.16.0")
    run = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sim import simulate; "
        f"simulate('kv-starved', {SMALL!r}).summary; print('vllm' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", run, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
