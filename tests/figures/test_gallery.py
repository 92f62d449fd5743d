"""The gallery shows every figure there is, at the width of a column in print, and its page names them all."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

import sim.figures
from sim.figures.style import COLUMN_IN, blank_figure
from sim.results.plots import RunPlots

SOURCE = Path(__file__).parents[2] / "notebooks" / "gallery.py"
FOLDER = SOURCE.parent / "figures" / "gallery"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_has_a_picture_one_or_two_columns_wide(gallery):
    names = {f"{name}.png" for name, *_ in gallery.PLATES}
    assert names == {path.name for path in FOLDER.glob("*.png")}
    for name, _, (width_in, height_in), _ in gallery.PLATES:
        assert width_in in (COLUMN_IN, 2 * COLUMN_IN)
        with Image.open(FOLDER / f"{name}.png") as picture:
            assert picture.width == int(width_in * gallery.DPI)
            assert picture.height == pytest.approx(height_in * gallery.DPI, abs=1)


def test_the_page_is_that_of_the_source(gallery):
    assert (FOLDER / "README.md").read_text() == "\n\n".join(gallery.index()) + "\n"


def test_no_figure_function_is_left_out(gallery):
    tree = ast.parse(SOURCE.read_text())
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    methods = {f"plot_{name}" for name in called if hasattr(RunPlots, name)}
    alone = {name for name in sim.figures.__all__ if name.startswith("plot_")}
    # Panels are rows of latency CDFs, and bands are what a decomposition is drawn with.
    missing = alone - called - methods - {"plot_latency_panels", "plot_bands"}
    assert not missing, "enter them in notebooks/gallery.py, run `make gallery` and look"


def test_captions_carry_the_numbers_of_the_catalogue(gallery):
    numbers = {int(found) for _, caption, *_ in gallery.PLATES for found in re.findall(r"^F(\d+)\.", caption)}
    assert numbers == {*range(1, 14), 16}


def test_a_plate_draws(gallery, monkeypatch):
    few = sim.simulate(sim.load_scenario("kv-starved", ["workload.num_requests=40"]))
    monkeypatch.setattr(gallery, "starved", lambda: few)
    figure: Figure = blank_figure(COLUMN_IN, 2.3)
    draw = {name: draw for name, _, _, draw in gallery.PLATES}["f12_preemptions"]
    draw(figure)
    assert figure.axes[0].get_xlabel() == "preemptions of one request"
