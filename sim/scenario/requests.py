"""Sections about the requests of a workload: what they share, ask for and are promised, and sessions."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from sim.scenario.distributions import Marginal, RandomTime
from sim.scenario.section import AlsoPlain, NonNegativeFloat, Section, Tokens
from sim.scenario.slo import Slo

MAX_TURNS = 10_000

Share = Annotated[float, Field(ge=0, le=1)]
Priority = Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)]
Turns = Annotated[int, Field(ge=1, le=MAX_TURNS)]


class PrefixesSection(Section):
    """Groups of requests whose prompts begin with the same tokens (a system prompt, a shared document)."""

    prefix_tokens: Annotated[Tokens, Field(description="tokens that a group's prompts have in common")]
    groups: Annotated[
        int, Field(ge=1, le=10_000_000, description="how many different prefixes there are")
    ] = 1
    popularity: Annotated[
        Literal["uniform", "zipf", "cycle"],
        Field(description="how a request gets its group: equal chances, zipf, or one after the other"),
    ] = "uniform"
    zipf_exponent: Annotated[
        NonNegativeFloat, Field(le=10, description="group k has weight 1/k^exponent under zipf")
    ] = 1.0
    share: Annotated[
        float, Field(ge=0, le=1, description="share of the requests that have a prefix at all")
    ] = 1.0
    within_prompt: Annotated[
        bool,
        Field(
            description="true: the first tokens of the drawn prompt are the prefix; "
            "false: the prefix comes before it and makes it longer, as in vllm bench serve"
        ),
    ] = False


class PopularitySection(Section):
    """Fields of whatever some requests ask for, one of several."""

    share: Annotated[Share, Field(description="share of the requests that ask for one at all")] = 1.0
    popularity: Annotated[
        Literal["uniform", "zipf"], Field(description="equal chances, or some far more popular than others")
    ] = "uniform"
    zipf_exponent: Annotated[
        NonNegativeFloat, Field(le=10, description="number k has weight 1/k^exponent under zipf")
    ] = 1.0


class AdaptersSection(PopularitySection):
    """Requests that name a LoRA adapter."""

    num_adapters: Annotated[int, Field(ge=1, le=30_000, description="different adapters")]


class GrammarsSection(PopularitySection):
    """Requests whose output must fit a grammar (a JSON schema, a regular expression)."""

    num_grammars: Annotated[int, Field(ge=1, le=10_000_000, description="different grammars")] = 1


class LengthEstimateSection(Section):
    """A guess at each output length, as a predictor would give it: the truth times lognormal noise."""

    sigma: Annotated[
        NonNegativeFloat,
        Field(le=10, description="standard deviation of log(guess / truth); 0 = the guess is right"),
    ]


class TimeoutsSection(Section):
    """A client that hangs up aborts its request, whatever the engine is doing with it."""

    total_s: Annotated[
        RandomTime | None,
        Field(description="from arrival to the last token; null = no limit"),
    ] = None
    first_token_s: Annotated[
        RandomTime | None, Field(description="from arrival to the first token; null = no limit")
    ] = None


class ClassSection(Section):
    """What the clients of one class are promised, and how important they are.

    The classes come from the components of mixed lengths, from the parts of a workload of kind mix, or from a
    trace. Requests of none of these are of class `default`.
    """

    priority: Annotated[
        Priority | None,
        Field(description="smaller goes first under scheduling_policy priority; null = the requests' own"),
    ] = None
    slo: Annotated[
        Slo | None, Field(description="latency targets of this class; null = those of the scenario")
    ] = None
    timeouts: Annotated[
        TimeoutsSection | None, Field(description="its clients' patience; null = that of the workload")
    ] = None


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


def _number_is_fixed_turns(value: object) -> object:
    """`4` is short for `{kind: fixed, value: 4}`."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if not 1 <= value <= MAX_TURNS:
        raise ValueError(f"must be from 1 to {MAX_TURNS} turns (got {value})")
    return {"kind": "fixed", "value": value}


TurnCount = Annotated[
    FixedTurns | UniformTurns | GeometricTurns,
    Field(discriminator="kind"),
    BeforeValidator(_number_is_fixed_turns),
    AlsoPlain({"type": "integer", "minimum": 1, "maximum": MAX_TURNS}),
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
