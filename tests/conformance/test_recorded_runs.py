"""The recorded runs of the real engine, replayed: every token, block id, queue order and output must be the
same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.evidence.conform import conform

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("plain", [False, True], ids=["cohort", "plain"])
@pytest.mark.parametrize(("release", "cases", "steps"), [("0.16.0", 246, 40826), ("0.33.0", 306, 44724)])
def test_every_recorded_run_of_a_release_is_identical(
    release: str, cases: int, steps: int, plain: bool
) -> None:
    """With requests in steady decode taken together, and with every request walked over in every step."""
    report = conform([GOLDEN / release], plain=plain)
    assert report.as_text().splitlines()[-1] == f"conform: {cases} of {cases} cases identical ({steps} steps)"
    assert report.passed


@pytest.mark.parametrize("plain", [False, True], ids=["cohort", "plain"])
@pytest.mark.parametrize("folder", sorted(path.name for path in GOLDEN.glob("*-*")))
def test_every_recorded_run_about_single_rules_is_identical(folder: str, plain: bool) -> None:
    """Runs that ask for one rule each, and runs with pipeline stages, in both ways."""
    report = conform([GOLDEN / folder], plain=plain)
    assert report.passed, report.as_text()
    assert report.cases
