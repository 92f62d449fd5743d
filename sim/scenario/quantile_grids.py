"""Measured length distributions, shipped as facts: quantiles of the prompt and output lengths of datasets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

_FILE = "length_quantiles.json"
ALIASES = {
    "azure_conv": "azure2023_conv",
    "azure_code": "azure2023_code",
    "mooncake": "mooncake_conversation",
    "sharegpt": "sharegpt_nanoflow",
    "lmsys": "lmsys_nanoflow",
    "deepseek_r1": "servegen_deepseek_r1",
    "arxiv": "arxiv_summarization",
}


@dataclass(frozen=True, slots=True, eq=False)
class QuantileGrid:
    """A share `probabilities[k]` of requests has at most `prompt[k]` (`output[k]`) prompt (output) tokens."""

    name: str
    source: str
    num_requests: int | None
    probabilities: npt.NDArray[np.float64]
    prompt: npt.NDArray[np.float64]
    output: npt.NDArray[np.float64]
    spearman: float


@cache
def _facts() -> dict[str, dict[str, object]]:
    text = (resources.files(__package__) / "data" / _FILE).read_text(encoding="utf-8")
    facts: dict[str, dict[str, object]] = json.loads(text)["grids"]
    return facts


@cache
def grid_names() -> tuple[str, ...]:
    """The names that `grid` takes: the datasets, then short names for some of them."""
    return (*_facts(), *ALIASES)


@cache
def grid(name: str) -> QuantileGrid:
    """The grid of that name; `KeyError` if there is none."""
    name = ALIASES.get(name, name)
    facts = _facts()[name]
    return QuantileGrid(
        name=name,
        source=str(facts["source"]),
        num_requests=None if facts["num_requests"] is None else int(str(facts["num_requests"])),
        probabilities=np.array(facts["percentiles"], np.float64) / 100,
        prompt=np.array(facts["prompt_tokens"], np.float64),
        output=np.array(facts["output_tokens"], np.float64),
        spearman=float(str(facts["spearman"])),
    )
