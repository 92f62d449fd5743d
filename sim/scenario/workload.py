"""The `workload` section: when requests arrive, by kind; flat, so that `--set workload.rate_per_s=9` fits."""

from collections.abc import Collection
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sim.errors import did_you_mean
from sim.scenario.distributions import Lengths, MixtureLengths
from sim.scenario.requests import (
    AdaptersSection,
    ClassSection,
    GrammarsSection,
    LengthEstimateSection,
    PrefixesSection,
    SessionsSection,
    TimeoutsSection,
)
from sim.scenario.section import (
    MAX_REQUESTS,
    Alternatives,
    NonNegativeFloat,
    PositiveFloat,
    Rate,
    RequestCount,
    Section,
)

DEFAULT_CLASS = "default"
"""The class of requests that nothing gives another."""

Classes = Annotated[
    dict[Annotated[str, Field(min_length=1)], ClassSection] | None,
    Field(description="priority, SLO and patience by name of class; null = all alike"),
]
LengthEstimate = Annotated[
    LengthEstimateSection | None,
    Field(description="output lengths guessed in advance, for policies that go by them; null = none"),
]
IgnoreEos = Annotated[
    bool, Field(description="true: max_tokens asks for the output length; false: the model ends it by EOS")
]
Temperature = Annotated[
    float | None,
    Field(
        ge=0,
        description="what requests ask for: 0 spares the sampling with top-p; null = as the model's "
        "generation_config.json says",
    ),
]


class RequestsSection(Section):
    """What every workload can say about its requests, wherever they come from."""

    prefixes: Annotated[
        PrefixesSection | None, Field(description="shared prefixes; null = all prompts differ")
    ] = None
    length_estimate: LengthEstimate = None
    max_concurrency: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="most requests in flight; the client holds the others back; null = no cap",
        ),
    ] = None
    ignore_eos: IgnoreEos = False
    temperature: Temperature = None
    over_length: Annotated[
        Literal["reject", "clip"],
        Field(description="a request longer than max_model_len is refused on arrival, or cut to fit"),
    ] = "reject"
    classes: Classes = None
    timeouts: Annotated[
        TimeoutsSection | None, Field(description="how long clients wait; null = for ever")
    ] = None
    lora: Annotated[
        AdaptersSection | None, Field(description="which LoRA adapters are asked for; null = none")
    ] = None
    grammar: Annotated[
        GrammarsSection | None, Field(description="which grammars outputs must fit; null = none")
    ] = None


class SyntheticSection(Alternatives, RequestsSection):
    """Requests made from distributions."""

    at_most_one_of: ClassVar = (("distinct_prompts", "sessions"),)

    lengths: Annotated[Lengths, Field(description="prompt and output lengths")]
    distinct_prompts: Annotated[
        RequestCount | None,
        Field(
            description="request i repeats the prompt and lengths of request i mod this; null = all differ"
        ),
    ] = None
    sessions: Annotated[
        SessionsSection | None,
        Field(description="each arrival begins a session of several turns; null = every request is alone"),
    ] = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of its requests."""
        if isinstance(self.lengths, MixtureLengths):
            return tuple(component.name for component in self.lengths.components)
        return (DEFAULT_CLASS,)


def _check_curve(curve: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    times_s = [t_s for t_s, _ in curve]
    if times_s[0] != 0:
        raise ValueError(f"the first time must be 0 (got {times_s[0]:g})")
    if any(later <= earlier for earlier, later in pairwise(times_s)):
        raise ValueError("times must increase")
    if curve[-1][1] == 0:
        raise ValueError("the last factor must be above 0: it holds for ever")
    return curve


RateCurve = Annotated[
    tuple[tuple[NonNegativeFloat, Annotated[float, Field(ge=0, le=1e6)]], ...],
    Field(min_length=1),
    AfterValidator(_check_curve),
]


class OpenLoopSection(SyntheticSection):
    """Requests that arrive at a rate, whether or not earlier ones are done."""

    exactly_one_of: ClassVar = (("duration_s", "num_requests"),)

    rate_per_s: Annotated[Rate, Field(description="mean arrivals per second, where the rate curve is 1")]
    duration_s: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None, Field(description="arrivals stop after this time")
    ] = None
    num_requests: Annotated[RequestCount | None, Field(description="arrivals stop after this many")] = None
    rate_curve: Annotated[
        RateCurve | None,
        Field(
            description="list of [t_s, factor]: from t_s on, the rate is factor x rate_per_s; null = constant"
        ),
    ] = None
    exact_rate: Annotated[
        bool,
        Field(
            description="rescale the gaps so that the last arrival falls where the rate says it should, "
            "at num_requests / rate_per_s for a constant rate, as vllm bench serve does"
        ),
    ] = False

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        highest = max(factor for _, factor in self.rate_curve or ((0, 1),))
        if self.duration_s is not None and self.rate_per_s * highest * self.duration_s > MAX_REQUESTS:
            raise ValueError(f"rate_per_s x duration_s may give more than {MAX_REQUESTS:,} requests")
        return self


class PoissonWorkload(OpenLoopSection):
    """Independent exponential gaps."""

    kind: Literal["poisson"]


class GammaWorkload(OpenLoopSection):
    """Independent gamma gaps: bursty below 1, regular above."""

    kind: Literal["gamma"]
    burstiness: Annotated[
        float,
        Field(
            gt=0, le=1e6, description="vLLM's gamma shape: 1 = Poisson, below 1 burstier; CV of gaps = 1/sqrt"
        ),
    ]


class ConstantWorkload(OpenLoopSection):
    """Equal gaps."""

    kind: Literal["constant"]


class BurstWorkload(SyntheticSection):
    """All requests arrive at t = 0."""

    kind: Literal["burst"]
    num_requests: Annotated[RequestCount, Field(description="how many requests")]


class ClosedLoopWorkload(SyntheticSection):
    """A fixed number of users: the next request starts when one ends."""

    kind: Literal["closed_loop"]
    num_requests: Annotated[RequestCount, Field(description="how many requests in all")]
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000, description="requests kept in flight")]


_Scale = Annotated[float, Field(ge=1e-9, le=1e9)]


class TraceWorkload(Alternatives, RequestsSection):
    """Requests read from a file."""

    at_most_one_of: ClassVar = (("time_scale", "rate_scale", "rate_per_s"),)

    kind: Literal["trace"]
    path: Annotated[
        str,
        Field(
            min_length=1,
            description="the file, plain or gzipped, by a path from the scenario file or the current folder",
        ),
    ]
    format: Annotated[
        Literal["auto", "azure", "mooncake", "burstgpt", "csv", "vidur", "recording"],
        Field(description="form of the file; auto = by its first line"),
    ] = "auto"
    time_scale: Annotated[_Scale | None, Field(description="multiply the gaps by this")] = None
    rate_scale: Annotated[_Scale | None, Field(description="divide the gaps by this")] = None
    rate_per_s: Annotated[Rate | None, Field(description="scale the gaps so that the mean rate is this")] = (
        None
    )
    start_s: Annotated[
        NonNegativeFloat, Field(description="skip what arrives before, in the trace's time")
    ] = 0.0
    end_s: Annotated[PositiveFloat | None, Field(description="stop before this, in the trace's time")] = None
    num_requests: Annotated[RequestCount | None, Field(description="keep the first so many requests")] = None
    spread_ticks_s: Annotated[
        PositiveFloat | None,
        Field(
            description="times are quantised to this tick: spread the requests of a tick at random over it"
        ),
    ] = None
    hash_block_tokens: Annotated[
        int, Field(ge=1, le=1 << 20, description="tokens that one of the trace's hash_ids stands for")
    ] = 512
    follow_sessions: Annotated[
        bool,
        Field(
            description="rows of one session are turns of one conversation: a prompt repeats what was said "
            "before, and a turn waits for the answer before it"
        ),
    ] = False


PlainWorkload = (
    PoissonWorkload | GammaWorkload | ConstantWorkload | BurstWorkload | ClosedLoopWorkload | TraceWorkload
)

PartName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=100)]


class MixWorkload(Section):
    """Several workloads at once, each with its own arrivals, lengths and clients."""

    kind: Literal["mix"]
    workloads: Annotated[
        dict[PartName, Annotated[PlainWorkload, Field(discriminator="kind")]],
        Field(min_length=1, description="workloads by name; the name becomes the class of their requests"),
    ]
    classes: Classes = None
    length_estimate: LengthEstimate = None
    ignore_eos: IgnoreEos = False
    temperature: Temperature = None


WorkloadSection = Annotated[
    PoissonWorkload
    | GammaWorkload
    | ConstantWorkload
    | BurstWorkload
    | ClosedLoopWorkload
    | TraceWorkload
    | MixWorkload,
    Field(discriminator="kind"),
]


def plain_parts(section: WorkloadSection) -> dict[str, PlainWorkload]:
    """The workloads that a section consists of, by their path in the scenario."""
    if isinstance(section, MixWorkload):
        return {f"workload.workloads.{name}": part for name, part in section.workloads.items()}
    return {"workload": section}


def class_in_mix(part: str, own_class: str) -> str:
    """The class, in a mixed workload, of a request of a part: the part's name, then its own class if any."""
    return part if own_class == DEFAULT_CLASS else f"{part}/{own_class}"


def unknown_class(name: str, known: Collection[str]) -> str:
    """The message about a class that no request has."""
    return f"no request is of this class; there are {', '.join(known)}{did_you_mean(name, known)}"
