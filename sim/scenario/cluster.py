"""The `cluster` section: how many replicas, who picks one for each request, and what KV cache they share."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.distributions import Seconds
from sim.scenario.section import Section


class RouterSection(Section):
    """The policy that sends each arriving request to a replica."""

    kind: Annotated[
        Literal["round_robin", "random", "least_outstanding", "power_of_two", "session"],
        Field(
            description="how the router picks a replica; session: the one that served the session's first "
            "turn, which goes to the one with the fewest requests in flight"
        ),
    ] = "round_robin"


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


class ClusterSection(Section):
    """Equal replicas behind one router."""

    replicas: Annotated[int, Field(ge=1, le=10_000, description="engines of the fleet")] = 1
    router: Annotated[RouterSection, Field(description="router in front of the replicas")] = (
        RouterSection.with_defaults()
    )
    external_cache: Annotated[
        ExternalCacheSection | None, Field(description="KV cache beyond the GPUs; null = none")
    ] = None
