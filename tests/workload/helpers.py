"""Workloads from a few words, and traces from a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sim.errors import InputError
from sim.random_streams import streams
from sim.scenario import scenario_from_data
from sim.scenario.yaml_text import Data
from sim.workload import Limits, RequestTable, Workload, build_workload

FIXED: dict[str, Data] = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20}


def build(workload: Mapping[str, Data], *, seed: int = 0, max_model_len: int = 1 << 20) -> Workload:
    """The requests of a workload section; lengths are 100 + 20 tokens unless it says otherwise."""
    section = dict(workload)
    if section["kind"] != "trace":
        section.setdefault("lengths", FIXED)
    scenario = scenario_from_data(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "gpu": "h100-sxm",
            "engine": {"max_model_len": max_model_len},
            "workload": section,
        }
    )
    return build_workload(scenario, streams(seed), Limits(max_model_len))


def poisson(num_requests: int, lengths: Mapping[str, Data] | None = None, **more: Data) -> dict[str, Data]:
    """A Poisson workload of one request a second."""
    section: dict[str, Data] = {"kind": "poisson", "rate_per_s": 1, "num_requests": num_requests, **more}
    return section if lengths is None else {**section, "lengths": dict(lengths)}


def replay(
    folder: Path, text: str, *, name: str = "t.csv", max_model_len: int = 1 << 20, **options: Data
) -> Workload:
    """The requests of a trace whose file says `text`."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return build({"kind": "trace", "path": str(path), **options}, max_model_len=max_model_len)


def trace_faults(folder: Path, text: str, **options: Data) -> list[str]:
    """The lines of the error that replaying `text` raises, without the folder."""
    with pytest.raises(InputError) as caught:
        replay(folder, text, **options)  # type: ignore[arg-type]
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def gaps_s(table: RequestTable) -> npt.NDArray[np.float64]:
    """Times between arrivals."""
    return np.diff(table.arrival_s)


def tokens_of(table: RequestTable, index: int) -> list[int]:
    """The prompt of a request, token by token."""
    return [start + k for start, length in table.prompt_ranges(index) for k in range(length)]
