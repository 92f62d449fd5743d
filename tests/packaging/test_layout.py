"""How files are rewritten for a wheel, and that nothing in them depends on the names in a checkout."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dryserve
import hatch_build
from hatch_build import PACKAGES, rewritten

REPO = Path(hatch_build.__file__).parent
SOURCES = sorted(path for package in PACKAGES for path in (REPO / package).rglob("*.py"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from sim import simulate", "from dryserve.sim import simulate"),
        ("if é:\n    from scheduler import Run  # é", "if é:\n    from dryserve.scheduler import Run  # é"),
        ("import cost_models", "import dryserve.cost_models; from dryserve import cost_models"),
        ("import sim.jobs.points as points", "import dryserve.sim.jobs.points as points"),
        ("import os, sim", "import os; import dryserve.sim; from dryserve import sim"),
        ("from simpy import Event", "from simpy import Event"),
        ("from . import sim", "from . import sim"),
        ("text = 'from sim import simulate'", "text = 'from sim import simulate'"),
        ("from sim.x import (\n    a,\n    b,\n)\n", "from dryserve.sim.x import (\n    a,\n    b,\n)\n"),
    ],
)  # fmt: skip
def test_imports_of_the_four_folders_are_rewritten_and_nothing_else(before: str, after: str) -> None:
    assert rewritten(before) == after


def test_the_examples_hold() -> None:
    assert doctest.testmod(hatch_build).attempted >= 2
    assert doctest.testmod(hatch_build).failed == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(REPO).as_posix())
def test_no_module_is_named_in_a_string(path: Path) -> None:
    """Such a name would not be rewritten: modules are found relative to the package instead."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value)
    ]
    assert named == []


def _is_module(text: str) -> bool:
    head, dot, _ = text.partition(".")
    if head not in PACKAGES or not dot or not text.replace(".", "").isidentifier():
        return False
    try:
        return find_spec(text) is not None
    except ImportError:
        return False


def test_the_public_names_are_listed_and_load() -> None:
    assert dir(dryserve) == sorted(dryserve.__all__)
    assert {"simulate", "load_scenario", "sweep", "size", "compare"} <= set(dryserve.__all__)
    for name in dryserve.__all__:
        assert getattr(dryserve, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = dryserve.simulat


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dryserve", "--version"], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("dryserve ")
