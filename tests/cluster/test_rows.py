"""Requests of the table, whatever the order in which they are sent."""

from __future__ import annotations

import pytest

from sim.cluster import world
from tests.cluster.helpers import make_table


@pytest.mark.parametrize("order", [range(10), [0, 1, 9, 2, 8, 3, 4, 5, 0], [7, 0, 1, 2, 3, 4, 5, 6]])
def test_a_row_is_that_of_its_request(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Later turns of sessions are sent between the first turns of others."""
    monkeypatch.setattr(world, "_CHUNK_ROWS", 3)
    table = make_table([0.0] * 10, prompt=range(10, 20), output=range(50, 60), rejected=[4])
    rows = world._Rows(table)
    for request_id in order:
        row = rows.at(request_id)
        assert (row.prompt_tokens, row.output_tokens) == (10 + request_id, 50 + request_id)
        assert row.rejected is (request_id == 4)
