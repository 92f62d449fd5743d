"""Distributions that a scenario can name: of lengths in tokens and of times in seconds."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sim.errors import did_you_mean
from sim.scenario.quantile_grids import grid_names
from sim.scenario.section import AlsoPlain, Alternatives, NonNegativeFloat, PositiveFloat, Section, Tokens

MAX_TIME_S = 1e9

Seconds = Annotated[NonNegativeFloat, Field(le=MAX_TIME_S)]


def _check_order(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in bounds)
    if bounds[0] > bounds[1]:
        raise ValueError(f"low end {low} is above high end {high}")
    return bounds


def _check_grid(name: str) -> str:
    if name not in grid_names():
        raise ValueError(
            f"unknown grid '{name}'{did_you_mean(name, grid_names())} known: {', '.join(grid_names())}"
        )
    return name


# --- lengths ------------------------------------------------------------------------------------------------

GridName = Annotated[str, AfterValidator(_check_grid)]
TokenRange = Annotated[tuple[Tokens, Tokens], AfterValidator(_check_order)]
Spearman = Annotated[float, Field(ge=-1, le=1, description="rank correlation of prompt and output lengths")]


class Fixed(Section):
    """One length for all."""

    kind: Literal["fixed"] = "fixed"
    tokens: Annotated[Tokens, Field(description="the length")]


class Uniform(Section):
    """Integers with equal chances."""

    kind: Literal["uniform"] = "uniform"
    tokens: Annotated[TokenRange, Field(description="[low, high], both ends included")]


class Lognormal(Alternatives):
    """Lognormal lengths, rounded to integers and cut at `min` and `max`."""

    exactly_one_of: ClassVar = (("mean", "mu"),)

    kind: Literal["lognormal"] = "lognormal"
    mean: Annotated[PositiveFloat | None, Field(description="mean in tokens, before cutting")] = None
    mu: Annotated[float | None, Field(ge=-20, le=20, description="mean of ln(tokens)")] = None
    sigma: Annotated[float, Field(ge=0, le=10, description="standard deviation of ln(tokens)")]
    min: Annotated[Tokens, Field(description="shortest length")] = 1
    max: Annotated[Tokens | None, Field(description="longest length")] = None

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Quantiles(Section):
    """Lengths along a measured quantile curve."""

    kind: Literal["quantiles"] = "quantiles"
    grid: Annotated[GridName, Field(description="name of the grid")]


Marginal = Annotated[Fixed | Uniform | Lognormal | Quantiles, Field(discriminator="kind")]


class FixedLengths(Section):
    """Every request has the same two lengths."""

    kind: Literal["fixed"]
    prompt_tokens: Annotated[Tokens, Field(description="prompt length")]
    output_tokens: Annotated[Tokens, Field(description="output length")]


class UniformLengths(Section):
    """Two independent uniform lengths."""

    kind: Literal["uniform"]
    prompt_tokens: Annotated[TokenRange, Field(description="prompt length [low, high], both ends included")]
    output_tokens: Annotated[TokenRange, Field(description="output length [low, high], both ends included")]


class LognormalLengths(Section):
    """Two lognormal lengths."""

    kind: Literal["lognormal"]
    prompt: Annotated[Lognormal, Field(description="prompt length")]
    output: Annotated[Lognormal, Field(description="output length")]
    spearman: Spearman = 0.0


class QuantileLengths(Section):
    """Prompt and output along the measured quantile curves of a dataset, with its rank correlation."""

    kind: Literal["quantiles"]
    grid: Annotated[GridName, Field(description="name of the grid")]
    spearman: Annotated[
        Spearman | None, Field(description="rank correlation of prompt and output; null = as measured")
    ] = None


class MarginalLengths(Section):
    """Prompt and output each with a distribution of their own kind."""

    kind: Literal["marginals"]
    prompt: Annotated[Marginal, Field(description="prompt length")]
    output: Annotated[Marginal, Field(description="output length")]
    spearman: Spearman = 0.0


SimpleLengths = Annotated[
    FixedLengths | UniformLengths | LognormalLengths | QuantileLengths | MarginalLengths,
    Field(discriminator="kind"),
]


class MixtureComponent(Section):
    """One sort of request in a mixture; its name becomes the request's class."""

    name: Annotated[str, Field(min_length=1, description="class of these requests in the results")]
    weight: Annotated[
        PositiveFloat, Field(description="share of the requests, relative to the other weights")
    ]
    lengths: Annotated[SimpleLengths, Field(description="lengths of these requests")]
    priority: Annotated[
        int,
        Field(
            ge=-1_000_000, le=1_000_000, description="smaller goes first, where the waiting order looks at it"
        ),
    ] = 0


class MixtureLengths(Section):
    """Each request is drawn from one of several components, independently of the others."""

    kind: Literal["mixture"]
    components: Annotated[tuple[MixtureComponent, ...], Field(min_length=1, description="what is mixed")]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [component.name for component in self.components]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"component names must differ: {', '.join(twice)} given twice")
        return self


Lengths = Annotated[
    FixedLengths | UniformLengths | LognormalLengths | QuantileLengths | MarginalLengths | MixtureLengths,
    Field(discriminator="kind"),
]


# --- times --------------------------------------------------------------------------------------------------


class FixedTime(Section):
    """Always the same."""

    kind: Literal["fixed"]
    value_s: Annotated[Seconds, Field(description="the time")]


class UniformTime(Section):
    """Any time of a range, all equally likely."""

    kind: Literal["uniform"]
    range_s: Annotated[
        tuple[Seconds, Seconds], AfterValidator(_check_order), Field(description="[shortest, longest]")
    ]


class ExponentialTime(Section):
    """Memoryless."""

    kind: Literal["exponential"]
    mean_s: Annotated[PositiveFloat, Field(le=MAX_TIME_S, description="mean")]


class LognormalTime(Alternatives):
    """Mostly short, sometimes very long."""

    exactly_one_of: ClassVar = (("mean_s", "median_s"),)

    kind: Literal["lognormal"]
    mean_s: Annotated[Annotated[float, Field(gt=0, le=MAX_TIME_S)] | None, Field(description="mean")] = None
    median_s: Annotated[Annotated[float, Field(gt=0, le=MAX_TIME_S)] | None, Field(description="median")] = (
        None
    )
    sigma: Annotated[NonNegativeFloat, Field(le=10, description="standard deviation of ln(time)")]


def _number_is_fixed_time(value: object) -> object:
    """`5` is short for `{kind: fixed, value_s: 5}`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not (math.isfinite(value) and 0 <= value <= MAX_TIME_S):
        raise ValueError(f"must be from 0 to {MAX_TIME_S:g} seconds (got {value})")
    return {"kind": "fixed", "value_s": value}


RandomTime = Annotated[
    FixedTime | UniformTime | ExponentialTime | LognormalTime,
    Field(discriminator="kind"),
    BeforeValidator(_number_is_fixed_time),
    AlsoPlain({"type": "number", "minimum": 0}),
]
"""A distribution of times in seconds; a bare number is a fixed one."""
