"""What sections of a scenario share: their base class, and the types of fields that many of them have.

Sections are frozen and strict; they take no unknown fields and no NaN.

Modules with sections do without `from __future__ import annotations`: pydantic would have to compile every
field's annotation from its text, each time that dryserve starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

import cost_models


class Section(BaseModel):
    """A mapping in a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def with_defaults(cls) -> Self:
        """The section with the default of every field, without building a validator: defaults are valid."""
        return cls.model_construct()


class Alternatives(Section):
    """A section with groups of fields of which a file gives at most one.

    Only few sections have this base: each validator of a section takes time when the section is made.
    """

    exactly_one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of fields of which a file must give one and no more."""

    at_most_one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of fields that exclude one another."""

    @model_validator(mode="wrap")
    @classmethod
    def _alternatives(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Check the groups of alternatives beside the fields, so that all faults are told at once."""
        faults = _alternative_faults(cls, data) if isinstance(data, Mapping) else []
        try:
            section = handler(data)
        except ValidationError as error:
            faults += [_restate(detail) for detail in error.errors(include_url=False)]  # type: ignore[arg-type]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return section


def _alternative_faults(cls: type[Alternatives], data: Mapping[str, object]) -> list[InitErrorDetails]:
    faults = []
    for group in cls.exactly_one_of + cls.at_most_one_of:
        given = [name for name in group if data.get(name) is not None]
        if not given and group in cls.exactly_one_of:
            message = f"give one of {', '.join(group)}"
            faults.append(
                InitErrorDetails(
                    type=PydanticCustomError("alternatives", "{message}", {"message": message}), input=data
                )
            )
        for name in given[1:]:
            message = f"not together with {given[0]}; give one of {', '.join(group)}"
            faults.append(
                InitErrorDetails(
                    type=PydanticCustomError("alternatives", "{message}", {"message": message}),
                    loc=(name,),
                    input=data[name],
                )
            )
    return faults


def _restate(detail: dict[str, object]) -> InitErrorDetails:
    """An error already raised, in the form from which pydantic builds a new exception."""
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "alternatives":
        detail = {**detail, "type": PydanticCustomError("alternatives", "{message}", context)}  # type: ignore[arg-type]
    return InitErrorDetails(type=detail["type"], loc=detail["loc"], input=detail["input"], ctx=context)  # type: ignore[typeddict-item]


@dataclass(frozen=True, eq=False)
class AlsoPlain:
    """Says in the JSON schema that a field also takes a plain value, such as a bare number."""

    schema: JsonSchemaValue

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [self.schema, handler(core)]}


def _known(look_up: Callable[[str], object], *also: str) -> AfterValidator:
    """A validator that refuses a name at which `look_up` fails; the names in `also` need no look-up."""

    def check(name: str) -> str:
        if name not in also:
            look_up(name)  # its errors are ValueErrors with the nearest names, as pydantic wants them
        return name

    return AfterValidator(check)


ModelName = Annotated[str, _known(cost_models.model)]
GpuName = Annotated[str, _known(cost_models.gpu)]
WeightDtypeName = Annotated[str, _known(cost_models.weight_dtype, "auto")]

PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]

MAX_REQUEST_TOKENS = 1 << 23
"""Bound on the prompt and on the output tokens of one request: 8 million, above any context length in use."""

MAX_REQUESTS = 100_000_000
"""Bound on the requests of one run: their columns still fit in memory."""

Tokens = Annotated[int, Field(ge=1, le=MAX_REQUEST_TOKENS)]
RequestCount = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
