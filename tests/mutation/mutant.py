"""Deliberate changes of single rules, and the recorded runs that notice each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutation.patterns import Edit

TESTS = "tests/mutation/test_unrecorded_rules.py::"


@dataclass(frozen=True)
class Mutant:
    """One rule broken, by edits to all modules of the scheduler.

    `noticed_by`: a recorded run (release/case) that must differ, or a test that must fail. For a change that
    none notices, `equivalent` says why nothing can.
    """

    what: str
    edits: tuple[Edit, ...]
    noticed_by: str = ""
    equivalent: str = ""


def one(
    what: str,
    old: str,
    new: str,
    noticed_by: str = "",
    where: str = "",
    places: int = 1,
    equivalent: str = "",
) -> Mutant:
    """A mutant of a single edit."""
    return Mutant(what, (Edit(old, new, where, places),), noticed_by, equivalent)
