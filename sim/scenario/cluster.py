"""The `cluster` section: how many replicas, and who picks one for each request."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.external_cache import ExternalCacheSection
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


class ClusterSection(Section):
    """Equal replicas behind one router."""

    replicas: Annotated[int, Field(ge=1, le=10_000, description="engines of the fleet")] = 1
    router: Annotated[RouterSection, Field(description="router in front of the replicas")] = (
        RouterSection.untold()
    )
    external_cache: Annotated[
        ExternalCacheSection | None, Field(description="KV cache beyond the GPUs; null = none")
    ] = None
