"""The scenarios shipped for each feature use it, finish, and keep the laws."""

from __future__ import annotations

import pytest

from sim.scenario import load_scenario
from sim.simulation import simulate

SHOWS = {
    "speculative": "spec_decode_acceptance_length",
    "lora": "adapters",
    "structured-output": "grammars_compiled",
    "external-cache": "external_prefix_cache_hits",
    "chat-sessions": "num_sessions",
    "client-classes": "classes",
    "impatient-clients": "aborted_output_tokens",
}


@pytest.mark.parametrize("name", SHOWS)
def test_a_shipped_scenario_shows_its_feature(name):
    result = simulate(load_scenario(name))
    summary = result.summary
    assert summary[SHOWS[name]]
    assert result.stuck is None
    assert summary["num_in_flight"] == summary["num_not_sent"] == 0
