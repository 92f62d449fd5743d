"""Same scenario, same seed, same version: the same bytes; another seed: others."""

from __future__ import annotations

from pathlib import Path

from sim.results import run_folder
from sim.scenario import Scenario, scenario_from_data
from sim.simulation import simulate


def scenario(seed: int, **changes: object) -> Scenario:
    data = {
        "name": "twice",
        "seed": seed,
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm",
        "cluster": {"replicas": 3, "router": {"kind": "power_of_two"}},
        "engine": {"max_model_len": 4096, "num_gpu_blocks_override": 200},
        "workload": {
            "kind": "gamma",
            "burstiness": 0.5,
            "rate_per_s": 30.0,
            "num_requests": 150,
            "lengths": {"kind": "uniform", "prompt_tokens": (10, 900), "output_tokens": (1, 120)},
            "prefixes": {"groups": 4, "prefix_tokens": 64},
        },
        "slo": {"ttft_p99": "500ms"},
    }
    return scenario_from_data(data | changes)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one = run_folder.write(simulate(scenario(seed=5)), tmp_path / "one")
    two = run_folder.write(simulate(scenario(seed=5)), tmp_path / "two")
    assert one.name == two.name
    assert files_of(one) == files_of(two)
    tables = {"requests.csv", "steps.csv", "preemptions.csv"}
    assert set(files_of(one)) == {"scenario.resolved.yaml", "summary.json", *tables}


def test_another_seed_gives_others(tmp_path):
    one = run_folder.write(simulate(scenario(seed=5)), tmp_path)
    two = run_folder.write(simulate(scenario(seed=6)), tmp_path)
    assert one.name != two.name
    for name, content in files_of(one).items():
        assert files_of(two)[name] != content, name


def test_checking_the_laws_changes_no_number():
    assert simulate(scenario(seed=5), check=True).summary == simulate(scenario(seed=5)).summary


def test_a_run_without_kept_steps_has_the_same_summary():
    lean = simulate(scenario(seed=5), keep_steps=False)
    assert lean.summary == simulate(scenario(seed=5)).summary
    assert len(lean.steps) == 0


def test_the_resolved_scenario_gives_the_same_run(tmp_path):
    folder = run_folder.write(simulate(scenario(seed=5)), tmp_path)
    again = run_folder.load(folder).scenario
    assert simulate(again).summary == run_folder.load(folder).summary
