"""A grid of values in one word: doublings, steps, lists."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.scenario import parse_axis, parse_grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("32..512", [32, 64, 128, 256, 512]),
        ("1..20", [1, 2, 4, 8, 16]),
        ("0.5..4", [0.5, 1, 2, 4]),
        ("1..20:5", [1, 6, 11, 16]),
        ("1..3:1", [1, 2, 3]),
        ("0..1:0.25", [0, 0.25, 0.5, 0.75, 1]),
        ("0.1..0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("-2..2:2", [-2, 0, 2]),
        ("1e2..1e3", [100, 200, 400, 800]),
        ("4..4", [4]),
        ("7", [7]),
        ("1,2.5,4", [1, 2.5, 4]),
        ("[1, 2]", [1, 2]),
        ("fp8,auto", ["fp8", "auto"]),
        ("true,false", [True, False]),
    ],
)
def test_a_grid_stands_for_its_values(text: str, values: list[object]) -> None:
    got = parse_grid(text)
    assert got == values
    assert [type(each) for each in got] == [
        type(each) if not isinstance(each, float) or not each.is_integer() else int for each in values
    ]


@pytest.mark.parametrize(
    "text",
    ["", "1..", "..5", "a..b", "5..1", "0..4", "-1..4", "1..4:0", "1..4:-1", "1..inf", "1..1e9:1", "[1"],
)
def test_a_grid_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--grid x="):
        parse_axis(f"x={text}")


def test_an_axis_has_a_path_and_values() -> None:
    assert parse_axis("engine.max_num_seqs=32..128") == ("engine.max_num_seqs", [32, 64, 128])
    with pytest.raises(InputError, match="must read path=values"):
        parse_axis("32..128")
