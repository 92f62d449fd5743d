"""The `engine.speculative_config` section: who drafts tokens, how many, and how often they are right."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

import cost_models
from cost_models.engines import version_key
from sim.errors import Fault
from sim.scenario.names import ModelName
from sim.scenario.section import Section

if TYPE_CHECKING:
    from sim.scenario.engine import EngineSection
    from sim.scenario.scenario import Scenario

DRAFT_MODELS_SINCE = (0, 14)
"""vLLM 0.13.0 refuses draft models: NotImplementedError."""
ASYNC_DRAFT_MODELS_SINCE = (0, 26)
"""Before, with a draft model asynchronous scheduling had to be asked for. The release is an estimate from the
date of the change (July 2026); 0.16.0 lies before it and 0.33.0 behind."""
DRAFTS_BY_BATCH_SINCE = "0.33.0"
"""The first release known to have them."""


class _OrNumber:
    """Tells editors that a bare number will do."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, handler(core)]}


def _number_is_list(value: object) -> object:
    """`0.7` is short for `[0.7]`, the same rate for every position."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not 0 <= value <= 1:
        raise ValueError(f"must be from 0 to 1 (got {value})")
    return (value,)


AcceptanceRates = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...],
    Field(min_length=1),
    BeforeValidator(_number_is_list),
    _OrNumber(),
]


DraftsOfBatch = tuple[
    Annotated[int, Field(ge=1, le=1_000_000)],
    Annotated[int, Field(ge=1, le=1_000_000)],
    Annotated[int, Field(ge=0, le=64)],
]


class SpeculativeSection(Section):
    """Speculative decoding: drafts are verified k at a time, and each step yields one token more than it
    accepts.
    """

    method: Annotated[
        Literal["ngram", "draft_model", "eagle"],
        Field(
            description="who drafts: a search in the prompt, a small model, or a layer on top of the model"
        ),
    ]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64, description="drafts per request and step")]
    acceptance: Annotated[
        AcceptanceRates,
        Field(
            description="chance that a draft is right if all before it are: one for all positions, or a list "
            "with one for each"
        ),
    ]
    model: Annotated[ModelName | None, Field(description="the small model; for draft_model only")] = None
    draft_pass_s: Annotated[
        Annotated[float, Field(ge=0, le=10)] | None,
        Field(description="seconds for one drafted token; null = by the cost model, 0 for ngram"),
    ] = None
    drafts_by_batch: Annotated[
        tuple[DraftsOfBatch, ...],
        Field(
            description="[first, last, drafts]: after a step of first to last requests so many drafts, and "
            "not num_speculative_tokens; with asynchronous scheduling; since vLLM "
            + DRAFTS_BY_BATCH_SINCE.removesuffix(".0")
        ),
    ] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.method == "draft_model" and self.model is None:
            raise ValueError("method draft_model needs a model")
        if self.method != "draft_model" and self.model is not None:
            raise ValueError(f"method {self.method} takes no model")
        if len(self.acceptance) not in (1, self.num_speculative_tokens):
            raise ValueError(
                f"acceptance has {len(self.acceptance)} rates for num_speculative_tokens "
                f"{self.num_speculative_tokens}; give one for each, or one for all"
            )
        last_before = 0
        for first, last, drafts in self.drafts_by_batch:
            if not last_before < first <= last or drafts > self.num_speculative_tokens:
                raise ValueError(
                    f"drafts_by_batch [{first}, {last}, {drafts}] must begin above {last_before}, not end "
                    f"before it begins, and have at most {self.num_speculative_tokens} drafts"
                )
            last_before = last
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """The chance of each position to be accepted, given that those before it are."""
        return self.acceptance * (self.num_speculative_tokens if len(self.acceptance) == 1 else 1)


def schedules_ahead_by_default(engine: "EngineSection") -> bool:
    """Whether that release keeps its default of asynchronous scheduling with this kind of speculation."""
    speculative = engine.speculative_config
    if speculative is None or speculative.method == "eagle":
        return True
    return speculative.method == "draft_model" and version_key(engine.version) >= ASYNC_DRAFT_MODELS_SINCE


def speculative_faults(scenario: "Scenario") -> Iterator[Fault]:
    """What vLLM would refuse."""
    engine, speculative = scenario.engine, scenario.engine.speculative_config
    if speculative is None:
        return
    if engine.pipeline_parallel_size > 1:
        yield scenario.fault(
            "engine.pipeline_parallel_size", "speculative decoding does not work with pipeline stages"
        )
    if speculative.method == "ngram" and engine.async_scheduling:
        yield scenario.fault(
            "engine.async_scheduling",
            "ngram drafts are made on the host and cannot be scheduled ahead; use eagle or draft_model, or "
            "leave it out",
        )
    if speculative.drafts_by_batch:
        yield from _drafts_by_batch_faults(scenario, engine)
    if speculative.model is None:
        return
    if version_key(engine.version) < DRAFT_MODELS_SINCE:
        yield scenario.fault(
            "engine.speculative_config.method", f"vLLM {engine.version} knows no draft models"
        )
    draft, target = (cost_models.model(name).model for name in (speculative.model, scenario.model))
    if draft.vocab != target.vocab:
        yield scenario.fault(
            "engine.speculative_config.model",
            f"has a vocabulary of {draft.vocab} tokens and {scenario.model} one of {target.vocab}; "
            "they must be the same",
        )


def _drafts_by_batch_faults(scenario: "Scenario", engine: "EngineSection") -> Iterator[Fault]:
    path = "engine.speculative_config.drafts_by_batch"
    if version_key(engine.version) < version_key(DRAFTS_BY_BATCH_SINCE):
        yield scenario.fault(
            path, f"known of vLLM since {DRAFTS_BY_BATCH_SINCE}; engine.version is {engine.version}"
        )
    ahead = engine.async_scheduling
    if not (schedules_ahead_by_default(engine) if ahead is None else ahead):
        yield scenario.fault(path, "has an effect with asynchronous scheduling only")
