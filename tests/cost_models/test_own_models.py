"""A model of one's own, named by the path of its config.json wherever a command or scenario names a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models import SpecError, UnknownNameError, model
from sim import load_scenario, simulate
from sim.errors import InputError
from sim.jobs.store import point_key
from tests.cli.helpers import dryserve

TINY = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}
SCENARIO = """\
model: {model}
gpu: h100-sxm
engine: {engine}
workload:
  kind: poisson
  rate_per_s: 20
  num_requests: 20
  lengths: {{kind: fixed, prompt_tokens: 200, output_tokens: 20}}
"""
KNOWN = {"granite-4.0-micro", "Llama-4-Scout-17B-16E-Instruct", "Llama-3.1-70B-Instruct-FP8"}


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(TINY | changes), encoding="utf-8")
    return path


def write_scenario(folder: Path, model: str, engine: str = "{}") -> Path:
    path = folder / "own.yaml"
    path.write_text(SCENARIO.format(model=model, engine=engine), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["mine/config.json", "mine", "./mine"])
def test_fit_plans_the_memory_of_a_config_or_its_folder(tmp_path, name):
    write_config(tmp_path / "mine")

    done = dryserve("fit", "--model", name, "--gpu", "h100-sxm", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine on h100-sxm")
    assert f"{2 * 16 * 8 * 64 * 2:,} bytes a token" in done.stdout


def test_a_scenario_names_it_relative_to_its_own_file(tmp_path):
    write_config(tmp_path / "scenarios" / "mine")
    path = write_scenario(tmp_path / "scenarios", "mine")

    done = dryserve("run", path, "--no-report", "--out", "runs", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["model_id"] == "mine"


def test_a_drafter_may_be_ones_own_too(tmp_path):
    write_config(tmp_path / "large", num_hidden_layers=32)
    write_config(tmp_path / "small", num_hidden_layers=2)
    drafting = (
        "{version: 0.16.0, speculative_config: {method: draft_model, model: small, "
        "num_speculative_tokens: 2, acceptance: 0.7}}"
    )
    result = simulate(load_scenario(write_scenario(tmp_path, "large", drafting)))
    alone = simulate(load_scenario(write_scenario(tmp_path, "large")))

    assert result.summary["completed"] == 20
    assert result.summary["num_gpu_blocks"] < alone.summary["num_gpu_blocks"]


def test_a_sweep_has_it_as_one_of_its_values(tmp_path):
    write_config(tmp_path / "mine")
    path = write_scenario(tmp_path, "Qwen/Qwen3-0.6B")
    grid = "model=mine/config.json,Qwen/Qwen3-0.6B"

    cache = {"DRYSERVE_CACHE": str(tmp_path / "cache")}
    done = dryserve("sweep", path, "--grid", grid, "-j", 1, "--out", "sweeps", cwd=tmp_path, env=cache)

    assert done.returncode == 0, done.stderr
    assert "mine/config.json" in done.stdout


def test_layers_that_are_not_modelled_are_refused_with_file_and_field(tmp_path):
    write_config(tmp_path / "mine", layer_types=["mamba", "attention"] * 8)
    path = write_scenario(tmp_path, "mine")

    done = dryserve("run", path, "--no-report", cwd=tmp_path)

    assert done.returncode == 2
    assert "own.yaml:1:1: model: " in done.stderr
    assert "mine/config.json: not modelled: mamba layers (layer_types)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "line 1: not JSON"), ("[]", "expected a JSON object"), ("{}", "model_type is missing")],
)
def test_a_file_that_is_no_config_is_one_error(tmp_path, text, told):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")

    done = dryserve("fit", "--model", "config.json", "--gpu", "h100-sxm", cwd=tmp_path)

    assert done.returncode == 2
    assert told in done.stderr
    assert "config.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json: cannot be read"):
        load_scenario(write_scenario(tmp_path, "nothing.json"))


def test_a_known_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    write_config(tmp_path / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)

    assert model("Qwen/Qwen3-0.6B").model.num_layers == 28
    assert model("./Qwen/Qwen3-0.6B").model.num_layers == 16


def test_a_folder_without_a_config_is_an_unknown_model(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownNameError):
        model("empty")


def test_a_config_that_changes_is_another_model_and_another_result(tmp_path):
    path = write_config(tmp_path / "mine")
    scenario = load_scenario(write_scenario(tmp_path, "mine"))
    layers, key = model(str(path)).model.num_layers, point_key(scenario)
    write_config(tmp_path / "mine", num_hidden_layers=20, description="a longer file")

    assert (layers, model(str(path)).model.num_layers) == (16, 20)
    assert point_key(scenario) != key


def test_the_quantisation_may_stand_beside_the_config(tmp_path):
    path = write_config(tmp_path / "mine")
    (tmp_path / "mine" / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8"}})
    )

    assert model(str(path)).model.quantization == "fp8"


def test_llama_4_scout_reads_like_the_known_one(shared_dir):
    own = model(str(shared_dir / "configs" / "meta-llama--Llama-4-Scout-17B-16E-Instruct")).model
    known = model("meta-llama/Llama-4-Scout-17B-16E-Instruct").model

    assert (own.moe, own.sliding_window, own.intermediate) == (
        known.moe,
        known.sliding_window,
        known.intermediate,
    )


def test_every_public_config_has_a_plan_or_is_refused_by_the_name_of_its_layers(shared_dir):
    refused = {}
    for folder in sorted((shared_dir / "configs").iterdir()):
        try:
            model(str(folder))
        except SpecError as error:
            refused[folder.name.rpartition("--")[2]] = str(error)

    names = {folder.name.rpartition("--")[2] for folder in (shared_dir / "configs").iterdir()}
    assert names - refused.keys() == KNOWN
    assert all("not modelled: " in reason for reason in refused.values()), refused


def test_names_that_are_known_can_be_listed():
    listed = dryserve("fit", "--names").stdout.split()

    assert {"meta-llama/Meta-Llama-3.1-8B", "h100-sxm"} <= set(listed)
