"""A scenario names a release and may set single rules of it otherwise; the result says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.release import RECORDED, parse_version, release
from sim.errors import InputError
from sim.scenario import reference_markdown
from sim.scenario.rules import RULE_NAMES, rule_facts, rule_value, rules_markdown
from sim.simulation import RunResult, simulate
from tests.compare.helpers import small_scenario

REPO = Path(__file__).resolve().parents[2]

DECISIONS = (
    "num_steps",
    "num_preemptions",
    "recomputed_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "kv_usage_max",
)


def decisions(result: RunResult) -> list[object]:
    return [result.summary[name] for name in DECISIONS]


def test_with_every_rule_undone_the_newest_release_decides_like_the_oldest():
    """Requests that come all at once leave no room for times to matter, so decisions are all there is."""
    oldest, newest = (simulate(small_scenario(version)) for version in RECORDED)
    undone = simulate(small_scenario(RECORDED[-1], rules=dict.fromkeys(RULE_NAMES, False)))
    assert decisions(undone) == decisions(oldest)
    assert decisions(newest) != decisions(oldest)


def test_with_every_rule_on_the_oldest_release_decides_like_the_newest():
    newest = simulate(small_scenario(RECORDED[-1]))
    done = simulate(small_scenario(RECORDED[0], rules=dict.fromkeys(RULE_NAMES, True)))
    assert decisions(done) == decisions(newest)


def test_a_rule_set_as_the_release_has_it_changes_nothing_and_is_not_worth_a_note():
    plain = simulate(small_scenario("0.33.0"))
    same = simulate(small_scenario("0.33.0", rules={"holders_first": True}))
    assert same.summary == plain.summary
    assert plain.notes == []


def test_the_result_says_which_rules_are_set_otherwise():
    result = simulate(small_scenario("0.33.0", rules={"reuse_unhashed_first": False, "holders_first": True}))
    assert result.summary["mirrors"] == "vLLM v0.33.0 with 1 rule changed"
    assert result.notes == ["rules set otherwise than in vLLM 0.33.0: reuse_unhashed_first off"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"holder_first": True}, "engine.rules.holder_first: unknown rule; did you mean 'holders_first'?"),
        ({"xyz": True}, "engine.rules.xyz: unknown rule; known: victims_move_the_walk, "),
        ({"holders_first": 1}, "engine.rules.holders_first: must be true or false (got 1)"),
    ],
)
def test_a_rule_that_does_not_exist_is_refused_with_the_nearest_that_does(rules, message):
    with pytest.raises(InputError) as caught:
        small_scenario(rules=rules)
    assert str(caught.value).startswith(message)


def test_the_order_in_which_rules_are_given_does_not_matter():
    one = small_scenario(rules={"holders_first": False, "reserve_full_prompt": False})
    other = small_scenario(rules={"reserve_full_prompt": False, "holders_first": False})
    assert one.dump_resolved() == other.dump_resolved()


def test_the_switch_of_whole_prompt_room_has_the_last_word_over_its_rule():
    """The rule is what the release does by itself, the switch what the user told it."""
    off = simulate(small_scenario("0.16.0"))
    both = simulate(small_scenario("0.16.0", rules={"reserve_full_prompt": True}, reserve_full_prompt=False))
    assert decisions(both) == decisions(off)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_holds_from_its_date_on(name):
    fact = rule_facts()[name]
    major, minor, patch = parse_version(fact.since)
    assert rule_value(release(fact.since), name)
    assert not rule_value(release(f"{major}.{minor - 1}.{patch + 9}"), name)


def test_every_rule_is_dated_explained_and_asked_for_somewhere():
    page = reference_markdown()
    for name, fact in rule_facts().items():
        assert fact.meaning.endswith(".")
        assert fact.modules, f"nobody asks for {name}"
        assert f"| `{name}` | {fact.since} | {fact.meaning} | " in page


def test_the_architecture_page_has_the_table_of_rules_as_the_code_has_it():
    """If this fails, put the text of `rules_markdown()` in place of the table."""
    page = (REPO / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert f"\n\n{rules_markdown()}\n## " in page


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("0.16.0", None),
        ("0.33", None),
        ("v0.33.0", None),
        ("0.25.0", "vLLM 0.25.0 lies between the recorded releases 0.16.0 and 0.33.0"),
        ("0.19.1rc1.dev339", "vLLM 0.19.1rc1.dev339 lies between the recorded releases"),
        ("0.33.0rc2", "vLLM 0.33.0rc2 is taken for the release 0.33.0"),
        ("0.10.1.1", "the decisions of vLLM 0.10.1.1 are not known; those of 0.16.0 stand in"),
        ("1.0", "the decisions of vLLM 1.0 are not known; those of 0.33.0 stand in"),
    ],
)
def test_any_version_is_taken_and_what_is_not_exact_about_it_is_said(version, note):
    notes = simulate(small_scenario(version)).notes
    assert notes == [] if note is None else [told.startswith(note) for told in notes] == [True]


@pytest.mark.parametrize("version", ["latest", "0", "33", "0.33.0 or so", ""])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(InputError, match=r"engine\.version: .* is not a version like 0\.33\.0"):
        small_scenario(version)
