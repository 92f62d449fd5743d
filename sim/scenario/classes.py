"""The `workload.classes` section: what the clients of each class are promised, and how important they are.

Classes themselves come from elsewhere: from the components of mixed lengths, from the parts of a workload of
kind mix, or from a trace. Requests of none of these are of class `default`.
"""

from typing import Annotated

from pydantic import Field

from sim.scenario.section import Section
from sim.scenario.slo import Slo
from sim.scenario.timeouts import TimeoutsSection

Priority = Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)]


class ClassSection(Section):
    """The requests of one class."""

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


Classes = dict[Annotated[str, Field(min_length=1)], ClassSection]
