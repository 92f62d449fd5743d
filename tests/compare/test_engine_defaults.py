"""What an engine takes where a scenario says nothing, by release, GPU and entry point.

The table is that of the start-up logs of real engines (see the sources in `cost_models/data/engines.toml`).
"""

from __future__ import annotations

from itertools import product

import pytest

from cost_models import engine_defaults
from tests.compare.helpers import small_scenario

LARGE = ("h100-sxm", "h200-sxm", "b200")
REST = ("a100-sxm-80gb", "a100-pcie-80gb", "a100-sxm-40gb", "l40s", "a10g")
SERVER, LLM = "server", "llm"

LIMITS = {
    ("0.6.0", LARGE): (256, 2048, 8192),
    ("0.6.0", REST): (256, 2048, 8192),
    ("0.8.1", LARGE): (1024, 8192, 16384),
    ("0.8.1", REST): (1024, 2048, 8192),
    ("0.10.1.1", LARGE): (1024, 8192, 16384),
    ("0.10.1.1", REST): (256, 2048, 8192),
    ("0.16.0", LARGE): (1024, 8192, 16384),
    ("0.16.0", REST): (256, 2048, 8192),
    ("0.33.0", ("h100-sxm", "h200-sxm")): (1024, 8192, 16384),
    ("0.33.0", ("b200",)): (1024, 16384, 16384),  # from 160 GiB on
    ("0.33.0", REST): (256, 2048, 8192),
}
"""Sequences, then tokens a step of the server and of the LLM class."""

CASES = [
    (version, gpu, entry_point, seqs, server if entry_point == SERVER else llm)
    for (version, gpus), (seqs, server, llm) in LIMITS.items()
    for gpu, entry_point in product(gpus, (SERVER, LLM))
]


@pytest.mark.parametrize(("version", "gpu", "entry_point", "seqs", "tokens"), CASES)
def test_limits(version, gpu, entry_point, seqs, tokens):
    found = engine_defaults(version, gpu, entry_point)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


@pytest.mark.parametrize(
    ("version", "utilization", "graphs_in_budget", "ahead"),
    [
        ("0.6.0", 0.90, False, False),
        ("0.10.1.1", 0.90, False, False),
        ("0.13.0", 0.90, False, False),
        ("0.14.0", 0.90, False, True),
        ("0.16.0", 0.90, False, True),
        ("0.20.1", 0.90, False, True),
        ("0.21.0", 0.92, True, True),
        ("0.33.0", 0.92, True, True),
        ("1.0", 0.92, True, True),
    ],
)
@pytest.mark.parametrize("gpu", [*LARGE, *REST])
def test_memory_and_scheduling_ahead(version, gpu, utilization, graphs_in_budget, ahead):
    found = engine_defaults(version, gpu)
    assert found.gpu_memory_utilization == pytest.approx(utilization)
    assert found.cuda_graphs_in_budget is graphs_in_budget
    assert found.async_scheduling is ahead


@pytest.mark.parametrize("version", ["0.6.0", "0.8.1", "0.10.1.1", "0.14.0", "0.33.0"])
def test_every_default_says_how_it_is_known(version):
    assert engine_defaults(version, "h100-sxm").source


def test_a_scenario_says_what_starts_the_engine():
    """The LLM class takes twice the tokens a step that the server does; whatever is set stays."""
    open_limits = {"max_num_seqs": None, "max_num_batched_tokens": None}
    assert small_scenario(**open_limits).resolved.engine.max_num_batched_tokens == 8192
    offline = small_scenario(**open_limits, entry_point=LLM).resolved.engine
    assert offline.max_num_batched_tokens == 16384
    assert small_scenario(entry_point=LLM).resolved.engine.max_num_batched_tokens == 512
