"""How often each of several things is asked for: adapters, grammars."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.section import NonNegativeFloat, Section

Share = Annotated[float, Field(ge=0, le=1)]


class PopularitySection(Section):
    """Fields of whatever some requests ask for, one of several."""

    share: Annotated[Share, Field(description="share of the requests that ask for one at all")] = 1.0
    popularity: Annotated[
        Literal["uniform", "zipf"], Field(description="equal chances, or some far more popular than others")
    ] = "uniform"
    zipf_exponent: Annotated[
        NonNegativeFloat, Field(le=10, description="number k has weight 1/k^exponent under zipf")
    ] = 1.0
