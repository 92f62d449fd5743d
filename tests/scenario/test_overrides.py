"""`--set path=value` changes one value, is checked like the file, and is blamed for its own faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.scenario import load_scenario
from tests.scenario.helpers import GOOD, faults_of, load_text


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    scenario = load_text(
        tmp_path, GOOD, ["workload.rate_per_s=12", "cluster.replicas=3", "cluster.replicas=4"]
    )
    assert scenario.workload.rate_per_s == 12  # type: ignore[union-attr]
    assert scenario.cluster.replicas == 4
    assert scenario.seed == 3


def test_a_value_is_yaml_and_may_be_a_section(tmp_path: Path) -> None:
    scenario = load_text(
        tmp_path,
        GOOD,
        [
            "workload.lengths={kind: uniform, prompt_tokens: [10, 20], output_tokens: [1, 2]}",
            "workload.rate_per_s=1e3",
        ],
    )
    assert scenario.workload.lengths.prompt_tokens == (10, 20)  # type: ignore[union-attr]
    assert scenario.workload.rate_per_s == 1000  # type: ignore[union-attr]


def test_null_puts_a_field_back_to_its_default(tmp_path: Path) -> None:
    scenario = load_text(tmp_path, GOOD, ["seed=null", "engine.max_num_seqs=null", "slo=null"])
    assert scenario.seed == 0
    assert scenario.engine.max_num_seqs is None
    assert scenario.slo is None


def test_null_lets_a_field_of_the_old_kind_go(tmp_path: Path) -> None:
    scenario = load_text(
        tmp_path,
        GOOD,
        ["workload.kind=closed_loop", "workload.rate_per_s=null", "workload.max_concurrency=8"],
    )
    assert scenario.workload.kind == "closed_loop"


def test_a_number_in_the_path_picks_an_item_of_a_list(tmp_path: Path) -> None:
    curve = "workload.rate_curve=[[0, 1], [10, 2]]"
    scenario = load_text(tmp_path, GOOD, [curve, "workload.rate_curve.1.1=5"])
    assert scenario.workload.rate_curve == ((0, 1), (10, 5))  # type: ignore[union-attr]
    assert faults_of(tmp_path, GOOD, [curve, "workload.rate_curve.2=5"]) == [
        "--set workload.rate_curve.2=5: workload.rate_curve.2: '2' is no item of a list of 2"
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workload.rate_per_s=-3", "workload.rate_per_s: must be greater than 0.0 (got -3)"),
        ("seed=abc", "seed: must be a whole number (got 'abc')"),
        ("engine.max_num_sqs=3", "engine.max_num_sqs: unknown field; did you mean 'max_num_seqs'?"),
        ("seed.x=3", "seed.x: 'x' cannot be set inside the plain value 3"),
        (
            "seed=[1",
            "seed: not YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'",
        ),
        ("seed", "must read path=value, such as workload.rate_per_s=12"),
        ("=3", "must read path=value, such as workload.rate_per_s=12"),
        ("engine..block_size=3", "must read path=value, such as workload.rate_per_s=12"),
        ("model=null", "model: is missing"),
    ],
)
def test_a_faulty_override_is_its_own_place(override: str, said: str, tmp_path: Path) -> None:
    assert faults_of(tmp_path, GOOD, [override]) == [f"--set {override}: {said}"]


def test_faults_of_overrides_come_after_those_of_the_file(tmp_path: Path) -> None:
    first, *others = faults_of(tmp_path, GOOD.replace("2.5", "-1"), ["seed=x", "cluster.replicas=0"])
    assert first.startswith("s.yaml:9:3: ")
    assert {line.split(": ")[0] for line in others} == {"--set seed=x", "--set cluster.replicas=0"}


def test_a_path_of_odd_digits_or_of_no_end_is_an_unknown_field(tmp_path: Path) -> None:
    """A raised two counts as a digit of no number, and a path may be deeper than Python can recurse."""
    assert "engine.²: unknown field" in faults_of(tmp_path, GOOD, ["engine.²=1"])[0]
    assert (
        "the path has 3,000 steps; at most 100" in faults_of(tmp_path, GOOD, [".".join("a" * 3000) + "=1"])[0]
    )


def test_null_hides_no_unknown_field(tmp_path: Path) -> None:
    said = faults_of(tmp_path, GOOD, ["sead=null", "workload.rte_per_s=", "engine.lora.rank="])
    assert [line.split(": ", 1)[1] for line in said][:2] == [
        "sead: unknown field; did you mean 'seed'?",
        "workload.rte_per_s: unknown field; did you mean 'rate_per_s'?",
    ]
    assert "engine.lora.rank: unknown field" in said[2]
    (line,) = faults_of(tmp_path, GOOD + "horizn_s:\n")
    assert line == "s.yaml:13:1: horizn_s: unknown field; did you mean 'horizon_s'?"


def test_a_single_override_need_not_be_in_a_list():
    assert load_scenario("quickstart", "cluster.replicas=2") == load_scenario(
        "quickstart", ["cluster.replicas=2"]
    )
