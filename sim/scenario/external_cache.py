"""The `cluster.external_cache` section: KV of prompt prefixes outside the engines, loaded over a link."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

import cost_models
from sim.errors import Fault
from sim.scenario.section import Section
from sim.scenario.times import Seconds

if TYPE_CHECKING:
    from sim.scenario.scenario import Scenario


class ShareHits(Section):
    """Given shares: what a measured hit rate says, without asking where the hits come from."""

    kind: Literal["share"]
    requests: Annotated[float, Field(ge=0, le=1, description="share of the requests that find anything")] = (
        1.0
    )
    prompt: Annotated[
        float, Field(ge=0, le=1, description="share of such a request's prompt that is found")
    ] = 1.0


class LruHits(Section):
    """A cache of blocks: what requests have computed stays until it is the least recently used."""

    kind: Literal["lru"]
    capacity_tokens: Annotated[int, Field(ge=1, le=1 << 50, description="tokens whose KV it holds")]


class ExternalCacheSection(Section):
    """A KV cache beyond the GPUs, reached through vLLM's KV connector. Writing to it costs no time."""

    hits: Annotated[
        ShareHits | LruHits, Field(discriminator="kind", description="which prefixes are found there")
    ]
    bandwidth_gb_per_s: Annotated[
        float, Field(gt=0, le=1e6, description="GB/s (1e9 bytes) of the link; loads go one after another")
    ]
    latency_s: Annotated[Seconds, Field(description="added to every load")] = 0.0
    asynchronous: Annotated[
        bool,
        Field(
            description="true: a request waits for its load while others compute; false: the step that "
            "admits it waits"
        ),
    ] = True
    shared: Annotated[
        bool, Field(description="one cache and one link for all replicas, or one of each for every replica")
    ] = True


def external_cache_faults(scenario: "Scenario") -> Iterator[Fault]:
    """What vLLM would refuse, and what is not simulated."""
    if scenario.cluster.external_cache is None:
        return
    path = "cluster.external_cache"
    if cost_models.model(scenario.model).model.sliding_window is not None:
        yield scenario.fault(
            path, f"needs a model with full attention in all layers, which {scenario.model} has not"
        )
    mode = scenario.engine.preemption_mode
    if mode is not None and mode.kind == "offload":
        yield scenario.fault(
            path, "an engine has one KV connector, and preemption_mode offload takes it; choose one of them"
        )
