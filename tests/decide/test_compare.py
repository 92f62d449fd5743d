"""Variants under the same seeds: exact zeros where nothing differs, intervals where something does."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from sim import InputError, RunOptions, compare, load_scenario
from sim.jobs.points import Outcome, Point
from sim.questions.compare import Comparison
from sim.questions.compare.results import (
    EXACT,
    NOT_SHOWN,
    SHOWN,
    SHOWN_ALONE,
    TOO_FEW,
    class_table,
    difference_table,
)
from sim.questions.compare.variants import make_variants, policy_names
from tests.cli.helpers import dryserve

STARVED = (
    "workload.num_requests=150",
    "engine.num_gpu_blocks_override=400",
    "workload.rate_per_s=60",
    "workload.lengths={kind: uniform, prompt_tokens: [100, 700], output_tokens: [50, 150]}",
)
"""So little KV cache that requests push one another out."""
HERE = RunOptions(workers=1, store=None)
QUICK = {"options": HERE, "replications": 3}

TWO_WORKERS = {**QUICK, "options": RunOptions(workers=2, store=None)}


@pytest.fixture(scope="module")
def victims():
    return compare("kv-starved", "fcfs_tail", "least_computed", overrides=STARVED, **QUICK)


def faults(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [str(fault) for fault in error.value.faults]


def text_of(found: Comparison) -> str:
    """The answer on the screen, its lines joined where they are wrapped."""
    return re.sub(r"\n *(?=\S)", " ", found.as_text())


def variants(*given: str, vary: tuple[str, ...] = (), base: str = "kv-starved"):
    return make_variants(load_scenario(base), given, vary, ())


# --- what is shown ------------------------------------------------------------------------------------------


def test_a_variant_that_is_the_same_differs_by_exactly_nothing():
    same = compare(
        "kv-starved", "max_num_seqs=1024", overrides=[*STARVED, "engine.max_num_seqs=1024"], **QUICK
    )
    compared = same.table[same.table["verdict"].notna()]
    assert (compared["difference"] == 0.0).all()
    assert compared["low"].isna().all()
    assert same.nothing_shown
    said = text_of(same)
    assert "No difference shown in any of" in said
    assert "+0" not in said


def test_least_computed_victims_recompute_less(victims):
    row = victims.difference("recomputed_token_share")
    assert row["difference"] < 0.0
    assert row["mean"] - victims.difference("recomputed_token_share", "fcfs_tail")["mean"] == pytest.approx(
        row["difference"]
    )


def test_runs_are_paired_by_seed_under_the_same_arrivals(victims):
    for first, second in zip(*victims.runs, strict=True):
        assert first.point.scenario.seed == second.point.scenario.seed
        np.testing.assert_array_equal(first.samples["arrival_s"], second.samples["arrival_s"])


def test_how_many_workers_there_are_does_not_matter(victims):
    two = compare(
        "kv-starved",
        "fcfs_tail",
        "least_computed",
        overrides=STARVED,
        **{**QUICK, "options": RunOptions(workers=2, store=None)},
    )
    assert two.as_json() == victims.as_json()


def test_what_varies_together_cancels_and_many_comparisons_are_minded():
    """Seeds move TTFT by far more than the variant does: only pairs can show it."""
    seeds = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    noise = np.array([0.1, -0.2, 0.15, -0.1, 0.05])
    runs = [
        [{"p99_ttft_ms": s, "p99_itl_ms": s} for s in seeds],
        [{"p99_ttft_ms": s + 1.0 + n, "p99_itl_ms": s + 0.2 + n} for s, n in zip(seeds, noise, strict=True)],
        [{"p99_ttft_ms": s + n, "p99_itl_ms": s} for s, n in zip(seeds, noise, strict=True)],
    ]
    table = difference_table(["a", "b", "c"], runs).set_index(["column", "variant"])
    assert table.loc[("p99_ttft_ms", "b"), "verdict"] == SHOWN
    assert table.loc[("p99_itl_ms", "b"), "verdict"] == SHOWN_ALONE
    assert table.loc[("p99_ttft_ms", "c"), "verdict"] == NOT_SHOWN
    assert table.loc[("p99_ttft_ms", "b"), "relative"] == pytest.approx(1.0 / seeds.mean())


def test_of_identical_policies_about_one_in_twenty_comparisons_seems_to_differ_and_almost_none_strictly():
    rng = np.random.default_rng(5)
    alone = strictly = 0
    for _ in range(200):
        runs = [
            [
                {m: float(v) for m, v in zip(NAMES, rng.normal(10, 1, len(NAMES)), strict=True)}
                for _ in range(8)
            ]
            for _ in range(2)
        ]
        verdicts = difference_table(["a", "b"], runs)["verdict"].dropna()
        alone += sum(verdicts != NOT_SHOWN)
        strictly += any(verdicts == SHOWN)
    assert 0.03 < alone / (200 * len(NAMES)) < 0.07
    assert strictly / 200 < 0.09


def test_two_seeds_that_differ_by_the_same_show_nothing_and_say_what_would():
    """Blocks are counted in whole numbers: two seeds agree to the last digit by luck."""
    found = compare(
        "kv-starved", "fcfs_tail", "least_computed", overrides=["workload.num_requests=100"], **TWO
    )
    row = found.difference("kv_usage_p95")
    assert row["difference"] != 0.0
    assert np.isnan(row["low"])
    assert set(found.verdicts) == {TOO_FEW, NOT_SHOWN}
    assert found.nothing_shown
    said = text_of(found)
    assert re.search(r"KV p95 \(%\) .* \+0\.\d% \(the same change in each of 2 seeds\)", said)
    assert "-1.8% (lower in 2 of 2 seeds)" in said
    assert "Two runs each: differences have no intervals, so nothing is shown." in said
    assert "It takes --replications 3 or more." in said
    assert "Bonferroni" not in said


TWO = {"options": HERE, "replications": 2}


@pytest.mark.parametrize(
    ("seeds", "said"), [(2, TOO_FEW), (5, TOO_FEW), (6, SHOWN_ALONE), (7, SHOWN), (20, SHOWN)]
)
def test_differences_that_are_all_the_same_count_by_the_number_of_seeds_that_agree(seeds, said):
    """By the sign test: 2 · 2^-6 is below 5 %, and 2 · 2^-7 below 5 % / 2, of two comparisons."""
    first = [{"p99_ttft_ms": float(s), "num_preemptions": float(s)} for s in range(1, seeds + 1)]
    second = [
        {"p99_ttft_ms": row["p99_ttft_ms"], "num_preemptions": row["num_preemptions"] + 3} for row in first
    ]
    table = difference_table(["a", "b"], [first, second]).dropna(subset="verdict").set_index("column")
    assert table.loc["num_preemptions", "verdict"] == said
    assert np.isnan(table.loc["num_preemptions", "low"])
    assert table.loc["num_preemptions", "evidence"] == f"the same change in each of {seeds} seeds"
    assert table.loc["p99_ttft_ms", "verdict"] == NOT_SHOWN


def test_where_seeds_change_nothing_a_difference_is_no_matter_of_chance(tmp_path):
    rows = "".join(f"{i * 0.1:.1f},{200 + i % 7},20\n" for i in range(40))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    (tmp_path / "s.yaml").write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nengine: {max_model_len: 4096}\n"
        "workload: {kind: trace, path: t.csv}\n"
    )
    found = compare(load_scenario(tmp_path / "s.yaml"), "max_num_seqs=1", **TWO)
    row = found.difference("median_ttft_ms")
    assert row["verdict"] == EXACT
    assert row["difference"] > 0.0
    said = text_of(found)
    assert "(the same change in each of 2 seeds)" in said
    assert "All seeds gave the same, so there are no intervals: nothing here is left to chance." in said
    assert "differences" in found.figures
    same = compare(load_scenario(tmp_path / "s.yaml"), "max_num_seqs=1024", **TWO)
    assert "No difference shown in any of" in text_of(same)


NAMES = ("median_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms", "output_throughput")


# --- what can be compared -----------------------------------------------------------------------------------


def test_one_variant_is_compared_with_the_scenario_itself():
    assert [v.label for v in variants("watermark=0.05")] == ["kv-starved", "watermark=0.05"]
    assert [v.label for v in variants("least_computed")] == ["kv-starved", "least_computed"]


def test_several_are_compared_with_the_first_of_them():
    found = variants("fcfs_tail", "least_computed", "max_num_seqs=64,watermark=0.05")
    assert [v.label for v in found] == ["fcfs_tail", "least_computed", "max_num_seqs=64, watermark=0.05"]
    last = found[-1].scenario.engine
    assert (last.max_num_seqs, last.watermark) == (64, 0.05)


def test_other_scenarios_are_compared_with_the_one_named_first(tmp_path):
    (tmp_path / "other.yaml").write_text(
        "name: other\nmodel: llama-3.1-8b\ngpu: l40s\nengine: {max_model_len: 4096}\n"
        "workload: {kind: burst, num_requests: 5, lengths: {kind: fixed, prompt_tokens: 9, "
        "output_tokens: 9}}\n"
    )
    found = variants("quickstart", str(tmp_path / "other.yaml"))
    assert [v.label for v in found] == ["kv-starved", "quickstart", "other"]


def test_each_value_of_a_field_is_a_variant_and_a_policy_needs_no_kind():
    found = variants(vary=("engine.victim_policy=fcfs_tail,least_computed",))
    assert [v.scenario.engine.victim_policy.kind for v in found] == ["fcfs_tail", "least_computed"]
    assert [v.label for v in found] == ["victim_policy=fcfs_tail", "victim_policy=least_computed"]


def test_a_policy_with_arguments_takes_the_place_of_the_one_that_was():
    (_, aged) = variants("waiting_order={kind: aged_priority, aging_s: 5},scheduling_policy=priority")
    assert aged.scenario.engine.waiting_order.aging_s == 5
    assert aged.scenario.engine.scheduling_policy == "priority"


def test_a_policy_named_alone_brings_what_it_needs_and_takes_away_what_speaks_against_it():
    fcfs, priority, fair = variants("fcfs", "priority", "fair", base="client-classes")
    assert fair.scenario.engine.waiting_order.kind == "fair"
    assert fair.scenario.engine.scheduling_policy == "fcfs"
    assert priority.scenario.engine == load_scenario("client-classes").engine
    assert fcfs.scenario.engine.scheduling_policy == "fcfs"


def test_every_kind_of_policy_can_be_named_and_no_name_means_two():
    names = policy_names()
    assert names["least_computed"] == "engine.victim_policy"
    assert names["fair"] == "engine.waiting_order"
    assert names["offload"] == "engine.preemption_mode"
    assert names["session"] == "cluster.router"
    assert names["priority"] == "engine.scheduling_policy"


def test_every_mistake_is_named_at_once():
    with pytest.raises(InputError) as caught:
        compare(
            "kv-starved",
            "leastcomputed",
            "watermark=2",
            "nosuch.field=1",
            "watermark=0.1,watermark=0.2",
            vary=["max_num_seqs"],
            replications=0,
        )
    said = faults(caught)
    assert any("did you mean 'least_computed'" in s for s in said)
    assert any("watermark=2" in s and "must be below 1" in s for s in said)
    assert any("nosuch" in s for s in said)
    assert any("watermark=0.1,watermark=0.2: watermark: is given twice" in s for s in said)
    assert any("--vary max_num_seqs: must read path=values" in s for s in said)
    assert any("--replications 0" in s for s in said)


def test_traces_that_are_not_there_are_mistakes_before_anything_runs():
    told = []
    with pytest.raises(InputError) as caught:
        compare(
            "kv-starved",
            "mooncake-h100",
            "workload={kind: trace, path: gone.csv}",
            replications=3,
            options=replace(HERE, on_progress=told.append),
        )
    assert not told
    placed, varied = sorted(faults(caught))
    assert re.match(r"scenarios/mooncake-h100\.yaml:\d+:3: workload\.path: no such file", placed)
    assert varied.endswith("workload.path: no such file: gone.csv")


def test_nothing_to_compare_with_is_a_mistake():
    with pytest.raises(InputError, match="name what to compare it with"):
        compare("kv-starved")


# --- classes ------------------------------------------------------------------------------------------------


def test_classes_are_told_apart_and_who_starves_is_named():
    def outcome(wait_s: float) -> Outcome:
        row = {
            "median_ttft_ms": 100.0,
            "p99_ttft_ms": 1000.0 * wait_s,
            "max_wait_s": wait_s,
            "num_requests": 9,
        }
        calm = {**row, "max_wait_s": 1.0}
        return Outcome(
            Point(load_scenario("client-classes"), {}), "", {"classes": {"chat": calm, "batch": row}}
        )

    table = class_table(["fcfs", "fair"], [[outcome(100.0), outcome(120.0)], [outcome(10.0), outcome(12.0)]])
    table = table.set_index(["variant", "class"])
    assert table["starves"].to_dict() == {
        ("fcfs", "chat"): False,
        ("fcfs", "batch"): True,
        ("fair", "chat"): False,
        ("fair", "batch"): False,
    }
    assert table.loc[("fair", "batch"), "p99_ttft_s_difference"] == pytest.approx(-99.0)


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_draws(tmp_path):
    sets = [part for text in STARVED for part in ("--set", text)]
    run = dryserve(
        "compare",
        "kv-starved",
        "--vary",
        "num_gpu_blocks_override=400,600",
        "--replications",
        3,
        "--workers",
        1,
        *sets,
        cwd=tmp_path,
        env={"DRYSERVE_CACHE": str(tmp_path / "cache")},
    )
    assert run.returncode == 0, run.stderr
    assert "comparisons, each at 95 %" in run.stdout
    (written,) = (tmp_path / "comparisons").iterdir()
    told = json.loads((written / "compare.json").read_text())
    assert told["reference"] == "num_gpu_blocks_override=400"
    assert "comparisons, each at 95 %" in (written / "report.md").read_text(encoding="utf-8")
    assert (written / "report.html").exists()
    drawn = {file.stem for file in (written / "figures").iterdir()}
    assert drawn >= {"differences", "ttft_cdf", "preemption_tax", "preemptions_per_request"}
