"""The release that a scenario names is the one whose rules the engines follow, and the result says so."""

from __future__ import annotations

import pytest

from sim.scenario import scenario_from_data
from sim.simulation import RunResult, simulate


def run(version: str, **engine: object) -> RunResult:
    """Forty requests at once that need twice the KV cache they have."""
    return simulate(
        scenario_from_data(
            {
                "model": "meta-llama/Llama-3.1-8B",
                "gpu": "h100-sxm",
                "engine": {
                    "version": version,
                    "max_model_len": 1024,
                    "max_num_batched_tokens": 512,
                    "max_num_seqs": 64,
                    "num_gpu_blocks_override": 500,
                }
                | engine,
                "workload": {
                    "kind": "burst",
                    "num_requests": 40,
                    "lengths": {"kind": "fixed", "prompt_tokens": 500, "output_tokens": 100},
                },
            }
        ),
        check=True,
    )


def test_a_later_release_admits_only_where_the_whole_prompt_fits():
    """0.16.0 looks at the next chunk only, later releases at the whole prompt: they preempt less."""
    old, new = run("0.16.0"), run("0.33.0")
    assert old.summary["num_finished"] == new.summary["num_finished"] == 40
    assert new.summary["num_preemptions"] < old.summary["num_preemptions"]


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
def test_the_result_names_the_release_it_mirrors(version):
    assert run(version).summary["mirrors"] == f"vLLM v{version}"


def test_a_release_that_is_not_recorded_comes_with_a_note():
    notes = run("0.25.0").notes
    assert any("0.25.0 lies between the recorded releases" in note for note in notes)
