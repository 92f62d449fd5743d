"""The `workload.sessions` section: conversations of several turns."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.scenario.lengths import Marginal
from sim.scenario.section import Section
from sim.scenario.times import RandomTime

MAX_TURNS = 10_000

Turns = Annotated[int, Field(ge=1, le=MAX_TURNS)]


class FixedTurns(Section):
    """Every session has the same number of turns."""

    kind: Literal["fixed"]
    value: Annotated[Turns, Field(description="turns of a session")]


class UniformTurns(Section):
    """Any number of a range, all equally likely."""

    kind: Literal["uniform"]
    range: Annotated[tuple[Turns, Turns], Field(description="[fewest, most], both ends included")]


class GeometricTurns(Section):
    """After every turn the user goes on with the same probability, 1 - 1/mean."""

    kind: Literal["geometric"]
    mean: Annotated[float, Field(ge=1, le=1000, description="mean number of turns")]


class _OrWholeNumber:
    """Tells editors that a bare number will do."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_TURNS}, handler(core)]}


def _number_is_fixed(value: object) -> object:
    """`4` is short for `{kind: fixed, value: 4}`."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if not 1 <= value <= MAX_TURNS:
        raise ValueError(f"must be from 1 to {MAX_TURNS} turns (got {value})")
    return {"kind": "fixed", "value": value}


TurnCount = Annotated[
    FixedTurns | UniformTurns | GeometricTurns,
    Field(discriminator="kind"),
    BeforeValidator(_number_is_fixed),
    _OrWholeNumber(),
]


class SessionsSection(Section):
    """Each arrival begins a conversation. A turn's prompt is all that was said before and a new message.

    The next turn comes when the answer has ended and the user has thought. `lengths` draws the new message
    and the answer of every turn; a concurrency cap counts sessions, from first turn to last.
    """

    turns: Annotated[TurnCount, Field(description="turns of a session, the first included")]
    think_time_s: Annotated[
        RandomTime | None,
        Field(description="from the end of an answer to the user's next message; null = none"),
    ] = None
    next_message: Annotated[
        Marginal | None,
        Field(description="new tokens of each turn after the first; null = as lengths says"),
    ] = None
