"""Notebooks run from top to bottom, their closing claims hold, and the copies with outputs are up to date."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_execute", FOLDER / "execute.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()
QUICKEST = ("01", "02", "12")
notebook = pytest.mark.parametrize("source", runner.sources(), ids=lambda path: path.stem)


def code(cells):
    return [(cell.cell_type, cell.source) for cell in cells]


def check(source: Path) -> None:
    executed = runner.execute(source)
    assert executed.cells[-1].source.lstrip().count("assert ") >= 3
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")


@pytest.mark.parametrize("number", QUICKEST)
@pytest.mark.slow
def test_a_notebook_runs_and_its_claims_hold(number):
    (source,) = [source for source in runner.sources() if source.name.startswith(number)]
    check(source)


@notebook
@pytest.mark.nightly
def test_every_notebook_runs_and_its_claims_hold(source):
    check(source)


@notebook
def test_the_copy_with_outputs_has_the_cells_of_the_source(source):
    committed = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert code(committed.cells) == code(runner.read(source).cells), "run `make notebooks`"
    assert any(cell.get("outputs") for cell in committed.cells)


@notebook
def test_the_title_is_a_question_and_the_answer_comes_first(source):
    cells = runner.read(source).cells
    title = cells[0].source.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?")
    assert cells[1].source.startswith(("import ", "from "))
    assert cells[2].source.startswith("## Answer")


@notebook
def test_outputs_are_small(source):
    assert source.with_suffix(".ipynb").stat().st_size < 500_000


@notebook
def test_a_notebook_imports_public_names_alone(source):
    imports = [line for cell in runner.read(source).cells for line in cell.source.splitlines()]
    ours = [line for line in imports if re.match(r"\s*(from|import) (sim|scheduler|cost_models)\b", line)]
    assert ours == []
