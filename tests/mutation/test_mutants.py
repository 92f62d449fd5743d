"""Break one rule at a time: the recorded runs, or a small test, must notice.

Each mutant is tried on one recorded run that is known to notice it, so the whole check costs a few minutes.
`make nightly` runs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sim.evidence.conform.conform import conform
from tests.mutation.mutants import MUTANTS
from tests.mutation.patterns import Module
from tests.mutation.worker import REPO, scheduler_trees

NOTICED = [name for name, mutant in MUTANTS.items() if mutant.noticed_by]
RECORDED = sorted({m.noticed_by for m in MUTANTS.values() if m.noticed_by and "::" not in m.noticed_by})


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOTICED)
def test_a_broken_rule_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    worker = [sys.executable, str(Path(__file__).with_name("worker.py")), name, mutant.noticed_by]
    done = subprocess.run(worker, capture_output=True, text=True, cwd=REPO, timeout=120, check=False)
    assert done.stdout.splitlines()[-1:] == ["noticed"], f"{mutant.what}\n{done.stdout}{done.stderr}"


def test_the_runs_that_notice_are_identical_while_no_rule_is_broken() -> None:
    files = [REPO / "tests" / "golden" / f"{case}.json.gz" for case in RECORDED]
    report = conform(files)
    assert report.passed
    assert report.identical == len(files)


def test_every_mutant_finds_what_it_changes_and_nothing_else() -> None:
    modules = [Module(tree) for tree in scheduler_trees().values()]
    for name, mutant in MUTANTS.items():
        for edit in mutant.edits:
            places = sum(len(module.places(edit)) for module in modules)
            assert places == edit.places, f"{name}: {edit.old!r} stands in {places} places"


def test_there_are_more_than_forty_and_those_unnoticed_say_why() -> None:
    assert len(RECORDED) > 40
    assert len(NOTICED) > 100
    for mutant in MUTANTS.values():
        assert bool(mutant.noticed_by) != bool(mutant.equivalent)
