"""Random times: how long users think, how long a grammar compiles, how long a client is patient."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.scenario.section import Alternatives, NonNegativeFloat, PositiveFloat, Section

MAX_TIME_S = 1e9

Seconds = Annotated[NonNegativeFloat, Field(le=MAX_TIME_S)]


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"low end {bounds[0]:g} is above high end {bounds[1]:g}")
    return bounds


class FixedTime(Section):
    """Always the same."""

    kind: Literal["fixed"]
    value_s: Annotated[Seconds, Field(description="the time")]


class UniformTime(Section):
    """Any time of a range, all equally likely."""

    kind: Literal["uniform"]
    range_s: Annotated[
        tuple[Seconds, Seconds], AfterValidator(_ordered), Field(description="[shortest, longest]")
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


class _OrNumber:
    """Tells editors that a bare number will do."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "number", "minimum": 0}, handler(core)]}


def _number_is_fixed(value: object) -> object:
    """`5` is short for `{kind: fixed, value_s: 5}`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not (math.isfinite(value) and 0 <= value <= MAX_TIME_S):
        raise ValueError(f"must be from 0 to {MAX_TIME_S:g} seconds (got {value})")
    return {"kind": "fixed", "value_s": value}


RandomTime = Annotated[
    FixedTime | UniformTime | ExponentialTime | LognormalTime,
    Field(discriminator="kind"),
    BeforeValidator(_number_is_fixed),
    _OrNumber(),
]
"""A distribution of times in seconds; a bare number is a fixed one."""
