"""`explain` as a notebook calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sim
from sim.errors import InputError
from sim.jobs.options import RunOptions
from tests.cli.helpers import write_scenario

TIGHT = """\
name: tight
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {max_model_len: 4096, num_gpu_blocks_override: 120}
workload:
  kind: poisson
  rate_per_s: 20
  num_requests: 40
  lengths: {kind: fixed, prompt_tokens: 300, output_tokens: 200}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRYSERVE_CACHE", str(tmp_path / "cache"))
    return write_scenario(tmp_path, TIGHT)


def test_an_explanation_is_an_answer(scenario: Path, tmp_path: Path):
    found = sim.explain(scenario, metric="e2e", percentile=90, options=RunOptions(workers=1))
    assert found.effects.remedies
    assert found.question.startswith("tight: p90 E2E latency is ")
    assert "WORSE" in found.as_text() or "better" in found.as_text()
    parts = found.tables()["parts.csv"]
    own = [name for name in parts if name.startswith("e2e_") and name != "e2e_s"]
    assert parts[own].sum(axis=1).to_numpy() == pytest.approx(parts["e2e_s"].to_numpy(), abs=1e-7)
    folder = found.write(tmp_path / "runs", draw=False)
    assert folder.parent.name == "explain"
    assert json.loads((folder / "explain.json").read_text(encoding="utf-8")) == found.as_json()


@pytest.mark.parametrize(
    "name", ["decomposition", "worst-minute-load", "worst-minute-kv", "waterfall", "steps"]
)
def test_each_figure_can_be_drawn_alone(scenario: Path, name: str):
    found = sim.explain(scenario, with_remedies=False)
    assert name in found.figures
    assert found.plot(name).has_data()


def test_the_folder_of_a_run_holds_its_explanation(scenario: Path, tmp_path: Path):
    from sim.results import run_folder

    run = run_folder.write(sim.simulate(sim.load_scenario(scenario)), tmp_path / "runs")
    found = sim.explain(run, with_remedies=False)
    assert found.write(draw=False) == run / "explain" / "ttft-p99"
    with pytest.raises(InputError, match="not a run that has been made"):
        sim.explain(run, overrides=["engine.max_num_seqs=3"])


def test_what_nobody_can_answer_is_refused(scenario: Path):
    with pytest.raises(InputError, match="must be one of ttft, e2e, itl"):
        sim.explain(scenario, "tpot")
    with pytest.raises(InputError, match="of ITL 50, 90, 95 and 99"):
        sim.explain(scenario, "itl", 97)
