"""A small engine whose KV cache and budgets a reader can count on paper."""

from __future__ import annotations

from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data


def burst(num_requests: int, prompt_tokens: int, output_tokens: int) -> dict[str, Data]:
    """All requests at once: then decisions depend on no times."""
    lengths = {"kind": "fixed", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"kind": "burst", "num_requests": num_requests, "lengths": lengths, "ignore_eos": True}


def small_scenario(
    version: str = "0.33.0",
    workload: dict[str, Data] | None = None,
    model: str = "meta-llama/Llama-3.1-8B",
    **engine: Data,
) -> Scenario:
    """64 requests at most, 512 tokens a step, 499 blocks of 16 tokens, 1,024 tokens a request."""
    return scenario_from_data(
        {
            "name": "small",
            "model": model,
            "gpu": "h100-sxm",
            "engine": {
                "version": version,
                "max_model_len": 1024,
                "max_num_batched_tokens": 512,
                "max_num_seqs": 64,
                "num_gpu_blocks_override": 500,
                "async_scheduling": False,
            }
            | engine,
            "workload": workload or burst(40, 300, 100),
        }
    )
