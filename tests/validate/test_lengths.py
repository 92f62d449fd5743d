"""Every way in which a run table writes token lengths, and what each means."""

from __future__ import annotations

import numpy as np
import pytest

from sim.evidence.validate.lengths import Fixed, FromFile, Mean, Mix, Quantiles, Uniform, parse_lengths


def draw(text: str, count: int = 20_000) -> np.ndarray:
    def table(name: str) -> tuple[list[float], list[float]]:
        return {"chat": ([0.0, 50.0, 100.0], [10.0, 20.0, 120.0])}[name]

    return parse_lengths(text).draw(np.random.default_rng(7), count, table)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("fixed:128", Fixed(128)),
        ("uniform:819:1024", Uniform(819, 1024)),
        ("mean:985.944", Mean(985.944)),
        ("quantiles:sharegpt", Quantiles("sharegpt")),
        ("file", FromFile()),
        (
            "mix:0.5*mean:252.926+0.5*mean:3917.58",
            Mix((0.5, 0.5), (Mean(252.926), Mean(3917.58))),
        ),
        (
            "mix:0.2*fixed:8+0.8*uniform:1:4",
            Mix((0.2, 0.8), (Fixed(8), Uniform(1, 4))),
        ),
    ],
)
def test_each_spec_of_the_grammar_is_read(text: str, spec: object) -> None:
    assert parse_lengths(text) == spec


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a length"),
        ("128", "is not a length"),
        ("fixed:", "is not a length"),
        ("fixed:12.5", "whole number"),
        ("fixed:0", "above 0"),
        ("fixed:many", "not a number"),
        ("uniform:5", "is not a length"),
        ("uniform:9:3", "lower end is above"),
        ("mean:-4", "above 0"),
        ("mix:0.5*fixed:1+0.4*fixed:2", "these to 0.9"),
        ("mix:fixed:1+fixed:2", "WEIGHT*SPEC"),
        ("mix:1*mix:1*fixed:1", "no nesting"),
        ("normal:100:5", "is not a length"),
    ],
)
def test_a_slip_in_a_spec_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("*", r"\*")):
        parse_lengths(text)


def test_fixed_and_mean_give_every_request_the_same_length() -> None:
    assert set(draw("fixed:128")) == {128}
    assert set(draw("mean:985.944")) == {986}


def test_uniform_includes_both_ends_and_nothing_else() -> None:
    lengths = draw("uniform:3:6")
    assert set(lengths) == {3, 4, 5, 6}
    assert lengths.mean() == pytest.approx(4.5, abs=0.03)


def test_a_mix_draws_each_request_from_one_part() -> None:
    lengths = draw("mix:0.25*fixed:10+0.75*fixed:1000")
    assert set(lengths) == {10, 1000}
    assert (lengths == 10).mean() == pytest.approx(0.25, abs=0.01)


def test_quantiles_are_linear_between_the_stated_percentiles() -> None:
    """Half of the requests have 10 to 20 tokens, half 20 to 120: the mean is (15 + 70) / 2."""
    lengths = draw("quantiles:chat")
    assert lengths.min() >= 10
    assert lengths.max() <= 120
    assert (lengths <= 20).mean() == pytest.approx(0.5, abs=0.015)
    assert lengths.mean() == pytest.approx(42.5, abs=0.7)


def test_an_unknown_quantile_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        draw("quantiles:nowhere")
