"""The policies of the `engine` section: who has to go, who goes first, and what becomes of a victim's KV.

Each is a mapping with a `kind`; null is vLLM's own choice. A kind with dots in it is the path of a class of
the user's own, whose constructor takes the other fields.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from sim.scenario.section import NonNegativeFloat, PositiveFloat, Section


def _check_path(path: str) -> str:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"'{path}' is no dotted path of a class, such as my_policies.Oldest")
    return path


ClassPath = Annotated[str, AfterValidator(_check_path)]
"""The dotted path of a class."""


class Plugin(Section):
    """A class of the user's own; used only when the caller allows plugins (`--allow-plugins`)."""

    kind: Literal["plugin"]
    path: Annotated[ClassPath, Field(description="dotted path of the class, such as my_policies.Oldest")]
    options: Annotated[
        dict[str, JsonValue], Field(description="arguments of its constructor", default_factory=dict)
    ]


def _spell_out_plugin(section: object) -> object:
    """`{kind: my.Policy, a: 1}` is short for `{kind: plugin, path: my.Policy, options: {a: 1}}`."""
    if isinstance(section, Mapping) and "." in str(section.get("kind")):
        options = {key: value for key, value in section.items() if key != "kind"}
        return {"kind": "plugin", "path": section["kind"], "options": options}
    return section


# --- who has to go when KV blocks run out -------------------------------------------------------------------


class FcfsTailVictim(Section):
    """The last of the running list, as in vLLM under fcfs."""

    kind: Literal["fcfs_tail"]


class PriorityVictim(Section):
    """The least important, of equals the latest to arrive, as in vLLM under priority."""

    kind: Literal["priority"]


class LeastComputedVictim(Section):
    """Who has the fewest computed tokens to lose."""

    kind: Literal["least_computed"]


class MostBlocksFreedVictim(Section):
    """Whose unshared KV blocks make the most room."""

    kind: Literal["most_blocks_freed"]


class FewestGeneratedVictim(Section):
    """Who has generated the fewest tokens."""

    kind: Literal["fewest_generated"]


class ShortestRemainingVictim(Section):
    """Shortest remaining work keeps running: who is expected to generate the most from here on has to go."""

    kind: Literal["shortest_remaining"]


VictimPolicySection = Annotated[
    FcfsTailVictim
    | PriorityVictim
    | LeastComputedVictim
    | MostBlocksFreedVictim
    | FewestGeneratedVictim
    | ShortestRemainingVictim
    | Plugin,
    Field(discriminator="kind"),
    BeforeValidator(_spell_out_plugin),
]


# --- who is admitted first ----------------------------------------------------------------------------------


class FcfsOrder(Section):
    """First come, first served, preempted requests in front, as in vLLM under fcfs."""

    kind: Literal["fcfs"]


class PriorityOrder(Section):
    """Smallest priority first, then the earlier arrival, as in vLLM under priority."""

    kind: Literal["priority"]


class AgedPriorityOrder(Section):
    """Priority that improves with age, so that nobody starves."""

    kind: Literal["aged_priority"]
    aging_s: Annotated[
        PositiveFloat, Field(le=1e9, description="seconds of age that are worth one step of priority")
    ]


class ShortestJobFirst(Section):
    """Fewest expected output tokens first, by the workload's length estimates."""

    kind: Literal["shortest_job_first"]


class FairOrder(Section):
    """Turns for the class of requests that has been served the fewest weighted tokens."""

    kind: Literal["fair"]
    prompt_weight: Annotated[NonNegativeFloat, Field(le=1e6, description="weight of a prompt token")] = 1.0
    output_weight: Annotated[
        Annotated[float, Field(gt=0, le=1e6)], Field(description="weight of an output token")
    ] = 2.0


WaitingOrderSection = Annotated[
    FcfsOrder | PriorityOrder | AgedPriorityOrder | ShortestJobFirst | FairOrder | Plugin,
    Field(discriminator="kind"),
    BeforeValidator(_spell_out_plugin),
]


# --- what becomes of a victim's KV --------------------------------------------------------------------------


class RecomputeMode(Section):
    """It is dropped and computed again, as far as the prefix cache has not kept it; as in vLLM."""

    kind: Literal["recompute"]


class OffloadMode(Section):
    """Its full blocks are copied to host memory and loaded back before the request goes on."""

    kind: Literal["offload"]
    bandwidth_gb_per_s: Annotated[
        Annotated[float, Field(gt=0, le=1e6)] | None,
        Field(
            description="GB/s (1e9 bytes) of each GPU's host link, each way; null = its PCIe at face value"
        ),
    ] = None
    host_memory_gb: Annotated[
        Annotated[float, Field(ge=0, le=1e6)] | None,
        Field(
            description="GB (1e9 bytes) of host memory for each GPU; what does not fit is recomputed; "
            "null = no limit"
        ),
    ] = None


PreemptionModeSection = Annotated[RecomputeMode | OffloadMode, Field(discriminator="kind")]
