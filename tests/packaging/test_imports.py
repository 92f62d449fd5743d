"""No circle of imports: whoever reads a module need not have read the modules that use it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ("sim", "scheduler", "cost_models")
MODULES = {
    ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((REPO / package).rglob("*.py"))
}


def test_no_module_takes_part_in_a_circle() -> None:
    """Counting what runs when a module is loaded: not what functions import, nor what types alone need."""
    assert_no_circle({name: set(loaded(path)) - {name} for name, path in MODULES.items()})


def test_no_package_takes_part_in_a_circle() -> None:
    """`sim.figures` may load `sim.results`, and then not the other way round."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name != "sim":  # which loads public names from everywhere when they are asked for
            package = package_of(name)
            graph.setdefault(package, set()).update(set(map(package_of, loaded(path))) - {package})
    assert_no_circle(graph)


def assert_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def package_of(module: str) -> str:
    return ".".join(module.split(".")[: 2 if module.startswith("sim.") else 1])


def loaded(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
