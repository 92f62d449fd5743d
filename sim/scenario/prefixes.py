"""The `workload.prefixes` section: what the prompts of different requests have in common."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.section import NonNegativeFloat, Section, Tokens


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
