"""A run explained in one line."""

from __future__ import annotations

from typing import Any

from sim.questions.explain.cause import Cause, find_cause
from sim.questions.explain.observe import Observed, observe
from sim.scenario import Scenario
from sim.scenario.loader import scenario_from_data

STEADY: dict[str, Any] = {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 40}


def make_scenario(
    *,
    rate: float = 10.0,
    requests: int = 120,
    lengths: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    seed: int = 0,
    horizon_s: float | None = None,
    **engine: Any,
) -> Scenario:
    traffic: dict[str, Any] = {
        "kind": "poisson",
        "rate_per_s": rate,
        "num_requests": requests,
        "lengths": lengths or STEADY,
    }
    return scenario_from_data(
        {
            "name": "small",
            "model": "meta-llama/Llama-3.1-8B",
            "gpu": "h100-sxm",
            "seed": seed,
            "horizon_s": horizon_s,
            "engine": {"max_model_len": 8192} | engine,
            "cluster": cluster or {},
            "workload": traffic | (workload or {}),
            "slo": {"ttft_p99": "1s", "tpot_p99": "50ms"},
        }
    )


def explained(scenario: Scenario, metric: str = "ttft", percent: float = 99) -> tuple[Observed, Cause]:
    observed = observe(scenario)
    return observed, find_cause(observed, metric, percent)
