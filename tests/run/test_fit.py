"""`dryserve fit`: three concurrencies, two by division and one seen in a full engine."""

from __future__ import annotations

from dataclasses import replace

from sim.questions.fit import fit, render
from sim.scenario import scenario_from_data


def fitted(**engine: object):
    """400 blocks of 16 tokens; requests of 100 + 28 tokens."""
    return fit(
        scenario_from_data(
            {
                "model": "meta-llama/Llama-3.1-8B",
                "gpu": "h100-sxm",
                "engine": {"max_model_len": 1600, "num_gpu_blocks_override": 401} | engine,
                "workload": {
                    "kind": "closed_loop",
                    "num_requests": 1000,
                    "max_concurrency": 1,
                    "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 28},
                },
            }
        )
    )


def test_worst_case_and_mean_length_are_divisions():
    found = fitted()
    assert found.kv_tokens == 6400
    assert found.at_max_model_len == 4.0
    assert found.at_mean_length == 50.0


def test_a_full_engine_runs_more_than_fit_at_full_length_and_no_more_than_fit_at_prompt_length():
    """A request holds 7 blocks after its prompt and 8 at its end: between 50 and 57 of them fill 400
    blocks."""
    low, middle, high = fitted().running
    assert 50 <= middle <= 57
    assert low <= middle <= high


def test_the_sequence_limit_is_named_when_it_is_the_limit():
    found = fitted(max_num_seqs=8)
    assert found.running[1:] == (8, 8)
    assert "The limit is max_num_seqs = 8, not memory." in render(found)


def test_the_sequence_limit_is_named_although_places_stand_empty_for_a_step():
    found = replace(fitted(max_num_seqs=8), running=(6, 7, 8))
    assert "The limit is max_num_seqs = 8, not memory." in render(found)
    assert "The limit" not in render(replace(found, num_preemptions=1))


def test_the_memory_bar_adds_up():
    found = fitted(num_gpu_blocks_override=None)
    plan = found.setup.plan
    assert plan is not None
    parts = plan.weights_bytes + plan.activation_bytes + plan.non_torch_bytes + plan.cuda_graph_bytes
    assert abs(plan.budget_bytes - parts - plan.kv_cache_bytes) < 1e6
    assert "KV cache" in render(found)
