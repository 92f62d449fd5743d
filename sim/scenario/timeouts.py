"""The `workload.timeouts` section: how long clients wait before they hang up."""

from typing import Annotated

from pydantic import Field

from sim.scenario.section import Section
from sim.scenario.times import RandomTime


class TimeoutsSection(Section):
    """A client that hangs up aborts its request, whatever the engine is doing with it."""

    total_s: Annotated[
        RandomTime | None,
        Field(description="from arrival to the last token; null = no limit"),
    ] = None
    first_token_s: Annotated[
        RandomTime | None, Field(description="from arrival to the first token; null = no limit")
    ] = None
