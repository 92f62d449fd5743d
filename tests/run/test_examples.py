"""The examples in the docstrings of the Python API run and give what they say."""

from __future__ import annotations

import doctest

import matplotlib.pyplot as plt
import pytest

import sim

EXAMPLES = ("load_scenario", "simulate", "sweep", "size", "compare")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_function_runs(name: str) -> None:
    function = getattr(sim, name)
    (test,) = [t for t in doctest.DocTestFinder(recurse=False).find(function, name) if t.examples]
    test.globs[name] = function
    told: list[str] = []
    try:
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    finally:
        plt.close("all")
    assert result.failed == 0, "".join(told)
    assert result.attempted >= 2
