"""Scenarios and worlds with one feature switched on, in a line or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sim.errors import InputError
from sim.random_streams import streams
from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data
from sim.workload import Limits, Workload, build_workload

FIXED: dict[str, Data] = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20}


def make_scenario(
    workload: Mapping[str, Data],
    *,
    engine: Mapping[str, Data] | None = None,
    cluster: Mapping[str, Data] | None = None,
    **more: Data,
) -> Scenario:
    """Llama 8B on an H100; lengths are 100 + 20 tokens unless the workload says otherwise."""
    section = dict(workload)
    if section["kind"] not in ("trace", "mix"):
        section.setdefault("lengths", FIXED)
    return scenario_from_data(
        {
            "model": more.pop("model", "meta-llama/Llama-3.1-8B"),
            "gpu": "h100-sxm",
            "engine": {"max_model_len": 16384, **(engine or {})},
            "cluster": dict(cluster or {}),
            "workload": section,
            **more,
        }
    )


def build(
    workload: Mapping[str, Data], *, seed: int = 0, max_model_len: int = 1 << 20, **more: Data
) -> Workload:
    """The requests of a workload section."""
    scenario = make_scenario(workload, **more)  # type: ignore[arg-type]
    return build_workload(scenario, streams(seed), Limits(max_model_len))


def faults_of(workload: Mapping[str, Data], **more: Data) -> list[str]:
    """The lines of the error that such a scenario raises."""
    with pytest.raises(InputError) as caught:
        build(workload, **more)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def text_of(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Ranges of ids, token by token."""
    return [start + k for start, length in ranges for k in range(length)]
