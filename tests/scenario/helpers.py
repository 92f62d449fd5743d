"""A small valid scenario to spoil in one place, and what the loader then says of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.scenario import Scenario, load_scenario

GOOD = """\
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
seed: 3
engine:
  max_model_len: 8192
  max_num_seqs: 128
workload:
  kind: poisson
  rate_per_s: 2.5
  num_requests: 10
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}
slo: {ttft_p99: 1s}
"""


def load_text(folder: Path, text: str, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario written in `text`, read from a file called s.yaml."""
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, overrides)


def spoilt(old: str, new: str) -> str:
    """The good scenario with one piece of its text replaced."""
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def faults_of(folder: Path, text: str, overrides: Sequence[str] = ()) -> list[str]:
    """The lines of the error that loading `text` raises, without the folder."""
    with pytest.raises(InputError) as caught:
        load_text(folder, text, overrides)
    return str(caught.value).replace(f"{folder}/", "").splitlines()
