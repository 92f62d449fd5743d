"""A wrong scenario is refused with place, field and what would have been right: all faults at once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from sim.errors import Fault, InputError
from sim.scenario import Scenario, load_scenario, scenario_from_data
from tests.scenario.helpers import GOOD, faults_of, load_text, spoilt

LENGTHS = "lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}"

ONE_FAULT = {
    "a misspelt field": (
        spoilt("max_num_seqs", "max_num_sqs"),
        "s.yaml:6:3: engine.max_num_sqs: unknown field; did you mean 'max_num_seqs'?",
    ),
    "a field of another kind": (
        spoilt("rate_per_s: 2.5", "rate_per_s: 2.5\n  burstiness: 0.5"),
        "s.yaml:10:3: workload.burstiness: is no field of kind poisson; it belongs to gamma",
    ),
    "an unknown kind": (
        spoilt("kind: poisson", "kind: posson"),
        "s.yaml:7:1: workload: 'posson' is not one of poisson, gamma, constant, burst, closed_loop, trace, "
        "mix; did you mean 'poisson'?",
    ),
    "no kind": (
        spoilt("  kind: poisson\n", ""),
        "s.yaml:7:1: workload: 'kind' is missing; one of poisson, gamma, constant, burst, closed_loop, trace",
    ),
    "an unknown choice": (
        spoilt("seed: 3", "cluster: {router: {kind: round_robbin}}"),
        "s.yaml:3:20: cluster.router.kind: 'round_robbin' is not one of round_robin, random, "
        "least_outstanding, power_of_two, session; did you mean 'round_robin'?",
    ),
    "a missing field": (spoilt("gpu: h100-sxm\n", ""), "s.yaml:1:1: gpu: is missing"),
    "a key given twice": (spoilt("seed: 3", "seed: 3\nseed: 4"), "s.yaml:4:1: seed: given twice"),
    "a key given twice, deep": (
        spoilt("prompt_tokens: 100", "prompt_tokens: 100, prompt_tokens: 7"),
        "s.yaml:11:46: workload.lengths.prompt_tokens: given twice",
    ),
    "below a bound": (
        spoilt("rate_per_s: 2.5", "rate_per_s: 0"),
        "s.yaml:9:3: workload.rate_per_s: must be greater than 0.0 (got 0)",
    ),
    "above a bound": (
        spoilt("max_num_seqs: 128", "gpu_memory_utilization: 1.5"),
        "s.yaml:6:3: engine.gpu_memory_utilization: must be at most 1.0 (got 1.5)",
    ),
    "not a number": (
        spoilt("rate_per_s: 2.5", "rate_per_s: .nan"),
        "s.yaml:9:3: workload.rate_per_s: must be a finite number (got nan)",
    ),
    "infinity": (
        spoilt("rate_per_s: 2.5", "rate_per_s: .inf"),
        "s.yaml:9:3: workload.rate_per_s: must be a finite number (got inf)",
    ),
    "a fraction for a whole number": (
        spoilt("seed: 3", "seed: 3.5"),
        "s.yaml:3:1: seed: must be a whole number (got 3.5)",
    ),
    "a whole number written as a fraction": (
        spoilt("max_num_seqs: 128", "max_num_seqs: 128.0"),
        "s.yaml:6:3: engine.max_num_seqs: must be a whole number (got 128.0)",
    ),
    "text for a number": (
        spoilt("max_num_seqs: 128", 'max_num_seqs: "128"'),
        "s.yaml:6:3: engine.max_num_seqs: must be a whole number (got '128')",
    ),
    "yes for true": (
        spoilt("max_num_seqs: 128", "enforce_eager: yes"),
        "s.yaml:6:3: engine.enforce_eager: must be true or false (got 'yes')",
    ),
    "one for true": (
        spoilt("max_num_seqs: 128", "enforce_eager: 1"),
        "s.yaml:6:3: engine.enforce_eager: must be true or false (got 1)",
    ),
    "true for a number": (
        spoilt("seed: 3", "seed: true"),
        "s.yaml:3:1: seed: must be a whole number (got true)",
    ),
    "a version that YAML takes for a number": (
        spoilt("max_num_seqs: 128", "version: 0.16"),
        "s.yaml:6:3: engine.version: must be text (got 0.16); write it in quotes",
    ),
    "a value for a section": (
        spoilt("  max_model_len: 8192\n  max_num_seqs: 128", "  8"),
        "s.yaml:4:1: engine: must be a mapping (got 8)",
    ),
    "a mapping for a value": (
        spoilt("seed: 3", "seed: {a: 1}"),
        "s.yaml:3:1: seed: must be a whole number (got a mapping)",
    ),
    "a section for a list": (
        spoilt("num_requests: 10", "num_requests: 10\n  rate_curve: {0: 1}"),
        "s.yaml:11:3: workload.rate_curve: must be a list (got a mapping)",
    ),
    "both of two alternatives": (
        spoilt("num_requests: 10", "num_requests: 10\n  duration_s: 60"),
        "s.yaml:10:3: workload.num_requests: not together with duration_s; give one of duration_s, "
        "num_requests",
    ),
    "neither of two alternatives": (
        spoilt("  num_requests: 10\n", ""),
        "s.yaml:7:1: workload: give one of duration_s, num_requests",
    ),
    "low end above high end": (
        spoilt(LENGTHS, "lengths: {kind: uniform, prompt_tokens: [9, 5], output_tokens: [1, 2]}"),
        "s.yaml:11:28: workload.lengths.prompt_tokens: low end 9 is above high end 5",
    ),
    "zero tokens": (
        spoilt("output_tokens: 20", "output_tokens: 0"),
        "s.yaml:11:46: workload.lengths.output_tokens: must be at least 1 (got 0)",
    ),
    "a rate curve that does not start at zero": (
        spoilt("num_requests: 10", "num_requests: 10\n  rate_curve: [[5, 1]]"),
        "s.yaml:11:3: workload.rate_curve: the first time must be 0 (got 5)",
    ),
    "a rate curve that runs back": (
        spoilt("num_requests: 10", "num_requests: 10\n  rate_curve: [[0, 1], [9, 2], [9, 3]]"),
        "s.yaml:11:3: workload.rate_curve: times must increase",
    ),
    "a rate curve with a bad pair": (
        spoilt("num_requests: 10", "num_requests: 10\n  rate_curve: [[0, 1], [9, -2]]"),
        "s.yaml:11:28: workload.rate_curve.1.1: must be at least 0.0 (got -2)",
    ),
    "more requests than memory holds": (
        spoilt("num_requests: 10", "duration_s: 1e8").replace("rate_per_s: 2.5", "rate_per_s: 1000"),
        "s.yaml:7:1: workload: rate_per_s x duration_s may give more than 100,000,000 requests",
    ),
    "a fault deep in a list": (
        spoilt(
            LENGTHS,
            "lengths:\n    kind: mixture\n    components:\n"
            "      - {name: a, weight: 1, lengths: {kind: fixed, prompt_tokens: 1, output_tokens: 1}}\n"
            "      - {name: b, weight: 1, lengths: {kind: lognormal, prompt: {mean: 5, sigma: -1},"
            " output: {mean: 5, sigma: 1}}}",
        ),
        "s.yaml:15:75: workload.lengths.components.1.lengths.prompt.sigma: must be at least 0.0 (got -1)",
    ),
    "two components of one name": (
        spoilt(
            LENGTHS,
            "lengths:\n    kind: mixture\n    components:\n"
            + "      - {name: a, weight: 1, lengths: {kind: quantiles, grid: lmsys}}\n" * 2,
        ),
        "s.yaml:11:3: workload.lengths: component names must differ: a given twice",
    ),
    "an unknown length grid": (
        spoilt(LENGTHS, "lengths: {kind: quantiles, grid: azure2023_con}"),
        "s.yaml:11:30: workload.lengths.grid: unknown grid 'azure2023_con'; did you mean 'azure2023_conv'?",
    ),
    "an SLO without a unit": (
        spoilt("ttft_p99: 1s", "ttft_p99: 1"),
        "s.yaml:12:7: slo.ttft_p99: 1 has no unit; write 1s or 1ms",
    ),
    "an SLO on an unknown metric": (
        spoilt("ttft_p99: 1s", "tfft_p99: 1s"),
        "s.yaml:12:7: slo.tfft_p99: unknown metric 'tfft'; one of ttft, tpot, e2e; did you mean 'ttft'?",
    ),
    "a budget below the requests of a step": (
        spoilt("max_num_seqs: 128", "max_num_seqs: 128\n  max_num_batched_tokens: 64"),
        "s.yaml:6:3: engine.max_num_seqs: max_num_batched_tokens 64 is below max_num_seqs 128",
    ),
    "whole prompts that can never fit": (
        spoilt("max_num_seqs: 128", "enable_chunked_prefill: false\n  max_num_batched_tokens: 2048"),
        "s.yaml:7:3: engine.max_num_batched_tokens: without chunked prefill the budget 2048 must reach "
        "max_model_len 8192",
    ),
    "a warm-up longer than the run": (
        spoilt("seed: 3", "horizon_s: 60\nwarmup_s: 60"),
        "s.yaml:4:1: warmup_s: must end before horizon_s 60",
    ),
}


@pytest.mark.parametrize("story", ONE_FAULT)
def test_a_fault_is_named_with_its_place(story: str, tmp_path: Path) -> None:
    text, expected = ONE_FAULT[story]
    said = faults_of(tmp_path, text)
    assert len(said) == 1
    assert said[0].startswith(expected)


UNREADABLE = {
    "an empty file": ("", "s.yaml: is empty; a scenario needs at least model, gpu and workload"),
    "only a comment": ("# later\n", "s.yaml: is empty; a scenario needs at least model, gpu and workload"),
    "a list": ("- model\n", "s.yaml:1:1: must be a mapping of fields, such as model: ..."),
    "an open bracket": ("model: {a\n", "s.yaml:2:1: not YAML: while parsing a flow mapping"),
    "a tab": ("engine:\n\tseed: 1\n", "s.yaml:2:1: not YAML: while scanning for the next token"),
    "an alias that nobody made": ("model: *x\n", "s.yaml:1:8: not YAML: found undefined alias 'x'"),
    "an alias within itself": ("engine: &a {b: *a}\n", "s.yaml:1:9: engine.b: an alias that contains itself"),
    "a list for a key": ("[1, 2]: x\n", "s.yaml:1:1: a key must be a single word"),
    "aliases that grow without end": (
        "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 9)),
        "s.yaml: not YAML: more than 100,000 values",
    ),
    "a pit of brackets": ("a: " + "[" * 5000, "s.yaml: not YAML: nested too deeply"),
    "two documents": ("a: 1\n---\nb: 2\n", "s.yaml:2:1: not YAML: expected a single document"),
    "a control character": ("model: \x07\n", "s.yaml: not YAML: "),
}


@pytest.mark.parametrize("story", UNREADABLE)
def test_a_file_that_is_no_scenario_says_why(story: str, tmp_path: Path) -> None:
    text, expected = UNREADABLE[story]
    assert any(line.startswith(expected) for line in faults_of(tmp_path, text))


def test_all_faults_come_at_once_from_top_to_bottom(tmp_path: Path) -> None:
    text = (
        GOOD.replace("h100-sxm", "h101-sxm").replace("128", "-1").replace("rate_per_s: 2.5\n", "rate: 2.5\n")
    )
    text = text.replace("1s}", "1}").replace("seed: 3", "seed: 3\nseed: 3")
    said = faults_of(tmp_path, text)
    assert [line.split(": ")[:2] for line in said] == [
        ["s.yaml:2:1", "gpu"],
        ["s.yaml:4:1", "seed"],
        ["s.yaml:7:3", "engine.max_num_seqs"],
        ["s.yaml:8:1", "workload.rate_per_s"],
        ["s.yaml:10:3", "workload.rate"],
        ["s.yaml:13:7", "slo.ttft_p99"],
    ]


def test_alternatives_are_checked_beside_other_faults(tmp_path: Path) -> None:
    text = spoilt("  num_requests: 10\n", "").replace("rate_per_s: 2.5", "rate_per_s: -1")
    assert [line.split(": ")[1] for line in faults_of(tmp_path, text)] == ["workload", "workload.rate_per_s"]


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("model", "Llama-3.1-9b", "Llama-3.1-8B"),
        ("gpu", "h100sxm", "h100-sxm"),
        ("weight_dtype", "fp9", "fp8"),
    ],
)
def test_names_that_nobody_knows_come_with_the_nearest_ones(
    field: str, value: str, nearest: str, tmp_path: Path
) -> None:
    said = faults_of(tmp_path, GOOD, [f"{field}={value}"])
    assert said[0].startswith(f"--set {field}={value}: {field}: unknown")
    assert nearest in said[0]


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"model: \xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8 text: byte 7"):
        load_scenario(path)


def test_an_error_keeps_its_faults_when_it_crosses_a_process(tmp_path: Path) -> None:
    error = InputError([Fault("s.yaml:1:2", "seed", "is odd"), Fault(None, None, "is late")])
    again = pickle.loads(pickle.dumps(error))
    assert again.faults == error.faults
    assert str(again) == "s.yaml:1:2: seed: is odd\nis late"


def test_a_scenario_made_in_code_has_faults_without_a_place() -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_data(
            {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100-sxm", "workload": {"kind": "burst"}}
        )
    assert {(fault.where, fault.path) for fault in caught.value.faults} == {
        (None, "workload.num_requests"),
        (None, "workload.lengths"),
    }


def test_a_loaded_scenario_cannot_be_changed(tmp_path: Path) -> None:
    scenario = load_text(tmp_path, GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        scenario.engine.block_size = 32  # type: ignore[misc]


def test_faults_found_later_point_at_the_scenario_too(tmp_path: Path) -> None:
    scenario = load_text(tmp_path, GOOD, ["engine.block_size=32"])
    path = str(tmp_path / "s.yaml")
    assert scenario.fault("engine.max_num_seqs", "too many").where == f"{path}:6:3"
    assert scenario.fault("engine.tensor_parallel_size", "does not divide").where == f"{path}:4:1"
    assert scenario.fault("engine.block_size", "odd").where == "--set engine.block_size=32"
    assert isinstance(scenario, Scenario)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("horizon_s: !!bool foo", "s.yaml:13:12: horizon_s: 'foo' cannot be read as bool"),
        ("horizon_s: !!int foo", "s.yaml:13:12: horizon_s: 'foo' cannot be read as int"),
        ("horizon_s: " + "9" * 5000, f"s.yaml:13:12: horizon_s: '{'9' * 37}...' cannot be read as int"),
        ('description: "\\ud800"', "s.yaml:13:14: description: half of a surrogate pair is no character"),
    ],
)
def test_a_value_that_its_tag_belies_is_one_fault_among_others(line: str, said: str, tmp_path: Path) -> None:
    wrong = spoilt("seed: 3", "seed: -3") + line + "\n"
    assert faults_of(tmp_path, wrong) == ["s.yaml:3:1: seed: must be at least 0 (got -3)", said]


def test_a_text_that_cannot_be_the_name_of_a_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        load_scenario("a\0b.yaml")
    with pytest.raises(InputError, match="cannot be read: file name too long"):
        load_scenario("x" * 5000 + ".yaml")
    trace = GOOD[: GOOD.index("  kind")] + "  kind: trace\n  path: " + "x" * 5000
    assert load_text(tmp_path, trace).workload.kind == "trace"


@pytest.mark.parametrize("stem", ["ü ñ", ".hidden", "a" * 101])
def test_a_file_whose_name_cannot_name_results_is_told_so(tmp_path, stem):
    file = tmp_path / f"{stem}.yaml"
    file.write_text(f"# no name here\n{GOOD}", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    assert str(caught.value).startswith(f"{file}: name: is taken from the file's name, but {stem!r} cannot")
    assert load_scenario(file, ["name=mine"]).name == "mine"
    file.write_text(f"name: yours\n{GOOD}", encoding="utf-8")
    assert load_scenario(file).name == "yours"
