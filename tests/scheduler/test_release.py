"""A release is a value: which named rules hold, by version, with the nearest standing in for the unknown."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from scheduler.release import RECORDED, Rules, release


def test_the_first_recorded_release_has_none_of_the_later_rules_and_the_last_has_all() -> None:
    first, last = (release(version) for version in RECORDED)
    assert not any(getattr(first.rules, rule.name) for rule in fields(Rules))
    assert all(getattr(last.rules, rule.name) for rule in fields(Rules))
    assert first.note is None
    assert last.note is None


def test_a_version_in_between_takes_the_rules_it_had_and_says_so() -> None:
    between = release("0.25.1")
    assert between.rules.reuse_unhashed_first
    assert not between.rules.holders_first
    assert between.defaults.reserve_full_prompt
    assert between.note is not None
    assert "0.25.1" in between.note


@pytest.mark.parametrize(
    ("version", "stands_in"), [("0.11.0", "0.16.0"), ("0.40", "0.33.0"), ("1.0.0", "0.33.0")]
)
def test_an_unknown_version_is_taken_for_the_nearest_and_says_so(version: str, stands_in: str) -> None:
    unknown = release(version)
    assert unknown.rules == release(stands_in).rules
    assert unknown.note is not None
    assert stands_in in unknown.note


def test_rules_only_ever_come_to_hold() -> None:
    held: set[str] = set()
    for minor in range(16, 34):
        rules = release(f"0.{minor}.0").rules
        now = {rule.name for rule in fields(Rules) if getattr(rules, rule.name)}
        assert held <= now
        held = now


def test_single_rules_can_be_set_against_the_release() -> None:
    changed = release("0.16.0").with_rules(holders_first=True)
    assert changed.rules.holders_first
    assert not changed.rules.reuse_unhashed_first
    with pytest.raises(TypeError):
        release("0.16.0").with_rules(no_such_rule=True)
    with pytest.raises(FrozenInstanceError):
        changed.rules.holders_first = False  # type: ignore[misc]


@pytest.mark.parametrize("version", ["", "latest", "0", "0.x.1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        release(version)
