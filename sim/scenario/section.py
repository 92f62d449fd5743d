"""What every section of a scenario shares: frozen, strict, no unknown fields, no NaN, numbers with bounds.

Modules with sections do without `from __future__ import annotations`: pydantic would have to compile every
field's annotation from its text, each time that dryserve starts.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


class Section(BaseModel):
    """A mapping in a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def untold(cls) -> Self:
        """The section of which a file says nothing; no validator is built for it, as defaults are valid."""
        return cls.model_construct()


class Alternatives(Section):
    """A section with fields of which a file must give one alone. A base of few sections, not of all: every
    validator of a section takes its time when the section is made.
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


PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]

MAX_REQUEST_TOKENS = 1 << 23
"""Bound on the prompt and on the output tokens of one request: 8 million, above any context length in use."""

MAX_REQUESTS = 100_000_000
"""Bound on the requests of one run: their columns still fit in memory."""

Tokens = Annotated[int, Field(ge=1, le=MAX_REQUEST_TOKENS)]
RequestCount = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
