"""Every way in which a run table writes token lengths, and what each means."""

from __future__ import annotations

import numpy as np
import pytest

from sim.evidence.validate import sent_requests
from sim.evidence.validate.run_table import MeasuredLengths, parse_lengths
from sim.evidence.validate.sent_requests import CannotRunError
from sim.scenario.distributions import Fixed, Marginal, Quantiles, Uniform
from sim.scenario.quantile_grids import QuantileGrid


def draw(text: str, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(7)
    return sent_requests._lengths("prompt", parse_lengths(text), None, count, rng)


def one(part: Marginal) -> MeasuredLengths:
    return MeasuredLengths((part,), (1.0,))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("fixed:128", one(Fixed(tokens=128))),
        ("uniform:819:1024", one(Uniform(tokens=(819, 1024)))),
        ("mean:985.944", MeasuredLengths.mean(985.944)),
        ("quantiles:sharegpt", one(Quantiles(grid="sharegpt"))),
        ("file", MeasuredLengths()),
        (
            "mix:0.5*mean:252.926+0.5*mean:3917.58",
            MeasuredLengths((Fixed(tokens=253), Fixed(tokens=3918)), (0.5, 0.5)),
        ),
        (
            "mix:0.2*fixed:8+0.8*uniform:1:4",
            MeasuredLengths((Fixed(tokens=8), Uniform(tokens=(1, 4))), (0.2, 0.8)),
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
        ("mean:inf", "not a number"),
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


def test_quantiles_are_linear_between_the_stated_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the requests have 10 to 20 tokens, half 20 to 120: the mean is (15 + 70) / 2."""
    curve = np.array([10.0, 20.0, 120.0])
    chat = QuantileGrid("chat", "by hand", None, np.array([0.0, 0.5, 1.0]), curve, curve, 0.0)
    monkeypatch.setattr(sent_requests, "grid_names", lambda: ("chat",))
    monkeypatch.setattr(sent_requests, "grid", {"chat": chat}.__getitem__)
    lengths = draw("quantiles:chat")
    assert lengths.min() >= 10
    assert lengths.max() <= 120
    assert (lengths <= 20).mean() == pytest.approx(0.5, abs=0.015)
    assert lengths.mean() == pytest.approx(42.5, abs=0.7)


def test_a_grid_that_nobody_ships_is_a_reason_not_to_run() -> None:
    with pytest.raises(CannotRunError, match="prompt lengths: no length quantiles named 'nowhere'"):
        draw("quantiles:nowhere")
