"""`dryserve compare-releases`: what it tells is what one would find by running everything by hand."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.commands import app
from sim.errors import InputError
from sim.evidence.releases import ReleaseComparison, compare_releases
from sim.evidence.releases.answer import METRICS
from sim.evidence.releases.differences import KV_MEMORY, STEP_TIMES
from sim.jobs.options import RunOptions
from sim.random_streams import streams
from sim.scenario import load_scenario
from sim.setup import engine_setup
from sim.simulation import simulate, simulate_workload
from sim.workload import Limits, build_workload

TIGHT = """\
# An A10G keeps few KV blocks beside an 8B model, and prompts come in chunks: room is what releases differ in.
model: meta-llama/Llama-3.1-8B
gpu: a10g
engine: {max_model_len: 4096, max_num_batched_tokens: 512}
workload:
  kind: poisson
  rate_per_s: 5
  num_requests: 60
  prefixes: {prefix_tokens: 100, groups: 5}
  lengths:
    kind: lognormal
    prompt: {mean: 700, sigma: 0.8, max: 2500}
    output: {mean: 150, sigma: 0.8, max: 800}
slo: {ttft_p99: 5s}
"""

ALONE = """\
# One request at a time, long prompts, a threshold.
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {max_model_len: 4096, long_prefill_token_threshold: 100}
workload:
  kind: closed_loop
  max_concurrency: 1
  num_requests: 5
  lengths: {kind: fixed, prompt_tokens: 1000, output_tokens: 5}
"""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scenarios") / "tight.yaml"
    path.write_text(TIGHT, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def found(tight: str) -> ReleaseComparison:
    return compare_releases(tight, options=RunOptions(workers=1, store=None))


def effect_of(found: ReleaseComparison, name: str) -> dict[str, object]:
    """The summary of the newer release with one difference undone."""
    (effect,) = (each for each in found.effects if each.difference.name == name)
    assert effect.undone is not None, f"{name} was never asked for"
    return effect.undone.summary


def test_both_releases_are_run_as_one_would_run_them_by_hand(found: ReleaseComparison, tight: str):
    for version, outcome in (("0.16.0", found.older_outcome), ("0.33.0", found.newer_outcome)):
        by_hand = simulate(load_scenario(tight, [f"engine.version={version}"]))
        assert outcome.summary == by_hand.summary


def test_every_difference_is_undone_as_the_setting_beside_it_would(found: ReleaseComparison, tight: str):
    settings = [(effect.difference.setting, effect.undone) for effect in found.effects]
    tried = [(setting, outcome) for setting, outcome in settings if setting and outcome]
    assert len(tried) > 6
    for setting, outcome in tried:
        by_hand = simulate(load_scenario(tight, ["engine.version=0.33.0", setting]))
        assert outcome.summary == by_hand.summary, setting


def test_a_rule_that_nobody_asked_for_changes_nothing_when_it_is_undone_all_the_same(
    found: ReleaseComparison, tight: str
):
    never = [effect.difference for effect in found.effects if effect.undone is None]
    assert len(never) > 10
    overrides = ["engine.version=0.33.0", *(str(each.setting) for each in never)]
    by_hand = simulate(load_scenario(tight, overrides)).summary
    for metric in METRICS:
        assert by_hand[metric.key] == found.newer_outcome.summary[metric.key]


def test_all_differences_undone_together_make_the_older_release_to_the_last_bit(found: ReleaseComparison):
    """So nothing that moves a prediction is missing from the list."""
    scenario = found.newer
    for effect in found.effects:
        if effect.difference.name != KV_MEMORY:
            scenario = effect.difference.undo(scenario)
    older = engine_setup(found.older).replica
    fields = {"num_gpu_blocks_override": older.kv_cache.num_blocks}
    scenario = scenario.model_copy(update={"engine": scenario.engine.model_copy(update=fields)})
    setup = engine_setup(scenario)
    own = setup.replica
    times = replace(older, scheduler=own.scheduler, kv_cache=own.kv_cache, release=own.release)
    setup = replace(setup, replica=times)
    limits = Limits(own.scheduler.max_model_len)
    workload = build_workload(scenario, streams(scenario.seed), limits)
    undone = simulate_workload(scenario, setup, workload).summary
    told = {"mirrors", "notes"}
    expected = {key: value for key, value in found.older_outcome.summary.items() if key not in told}
    assert {key: value for key, value in undone.items() if key not in told} == expected


def test_whole_prompt_room_spares_preemptions_where_chunks_are_smaller_than_prompts(found: ReleaseComparison):
    """Without it a request is let in for its first 512 tokens, and finds no room for the rest."""
    without = effect_of(found, "reserve_full_prompt")
    assert without["num_preemptions"] > found.newer_outcome.summary["num_preemptions"]  # type: ignore[operator]
    assert "\nreserve_full_prompt " in found.as_text()


def test_defaults_and_facts_of_the_cost_models_stand_beside_the_rules(found: ReleaseComparison):
    kinds = {effect.difference.name: effect.difference.kind for effect in found.effects}
    assert kinds["gpu_memory_utilization"] == "default"
    assert kinds[KV_MEMORY] == kinds[STEP_TIMES] == "cost model"
    assert "gpu_memory_utilization, 0.9 → 0.92" in found.as_text()


def test_a_lone_request_is_not_cut_by_the_threshold_any_more(tmp_path: Path):
    """0.16.0 computes 1,000 tokens in ten steps of 100, 0.33.0 in one; nothing else does as much to TTFT."""
    path = tmp_path / "alone.yaml"
    path.write_text(ALONE, encoding="utf-8")
    found = compare_releases(str(path))
    newer = found.newer_outcome.summary["num_steps"]
    undone = effect_of(found, "lone_requests_ignore_the_threshold")["num_steps"]
    assert isinstance(newer, int)
    assert undone == newer + 5 * 9
    effects = found.as_text().split("What each")[1].splitlines()
    head = next(place for place, line in enumerate(effects) if "TTFT" in line)
    assert effects[head + 1].startswith("lone_requests_ignore_the_threshold ")


def test_two_processes_tell_the_same_as_one(found: ReleaseComparison, tight: str):
    again = compare_releases(tight, options=RunOptions(workers=2, store=None))
    assert again.as_text() == found.as_text()
    assert again.json_text() == found.json_text()


def test_the_table_has_every_run_in_full(found: ReleaseComparison, tmp_path: Path):
    folder = found.write(tmp_path)
    with (folder / "releases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows[:2]] == ["release", "release"]
    assert len(rows) == 2 + len(found.effects)
    for row, effect in zip(rows[2:], found.effects, strict=True):
        assert row["name"] == effect.difference.name
        assert row["run"] == ("undone" if effect.undone else "not asked for")
        outcome = effect.undone or found.newer_outcome
        assert float(row["p99_ttft_ms"]) == outcome.summary["p99_ttft_ms"]


def test_releases_with_the_same_rules_and_defaults_do_not_differ(tight: str):
    same = compare_releases(tight, older="0.18.0", newer="0.19.0")
    assert same.effects == ()
    assert "Nothing differs." in same.as_text()
    assert same.older_outcome.summary["p99_ttft_ms"] == same.newer_outcome.summary["p99_ttft_ms"]


@pytest.mark.parametrize(
    ("older", "newer", "message"),
    [
        ("0.33.0", "0.16.0", "--from 0.33.0 --to 0.16.0: must be older than the other release"),
        ("0.33", "0.33.0", "--from 0.33 --to 0.33.0: must be older than the other release"),
        ("0.16.0", "newest", "--to newest: 'newest' is not a version like 0.33.0"),
    ],
)
def test_releases_that_cannot_be_compared_are_refused(tight: str, older: str, newer: str, message: str):
    with pytest.raises(InputError) as caught:
        compare_releases(tight, older=older, newer=newer)
    assert str(caught.value) == message


def test_a_switch_that_the_older_release_lacks_is_refused(tight: str):
    with pytest.raises(InputError, match=r"engine\.prefill_interval: known of vLLM since 0\.33\.0"):
        compare_releases(tight, ["engine.prefill_interval=2"])


def test_what_the_scenario_sets_itself_is_no_difference(tight: str):
    names = {
        effect.difference.name
        for effect in compare_releases(
            tight, ["engine.num_gpu_blocks_override=2000", "engine.reserve_full_prompt=true"]
        ).effects
    }
    assert not names & {"reserve_full_prompt", "gpu_memory_utilization", KV_MEMORY}


def test_the_command_prints_the_report_that_it_writes(tight: str, tmp_path: Path):
    options = ["--to", "0.23.0", "--set", "workload.num_requests=50", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["compare-releases", tight, *options])
    assert result.exit_code == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tight-0.16.0-0.23.0-")
    assert "What each difference does in 0.23.0" in result.stdout
    told = (folder / "report.md").read_text(encoding="utf-8")
    assert _words(told.replace("```", "")) == _words(result.stdout)
    assert "What each difference does in 0.23.0" in (folder / "report.html").read_text(encoding="utf-8")
    assert "--set workload.num_requests=50 --set engine.version=0.23.0" in result.stdout
    assert "0.23.0: vLLM 0.23.0 lies between the recorded releases" in result.stdout


def _words(page: str) -> list[str]:
    """What a page says, without the marks of headings, lists and tables."""
    return re.sub(r"[|*#:-]", " ", page).split()
