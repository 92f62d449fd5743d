"""LoRA: the `engine.lora` section (slots) and the `workload.lora` section (who asks for which adapter)."""

from typing import Annotated, Literal

from pydantic import Field

from sim.scenario.popularity import PopularitySection
from sim.scenario.section import Section


class LoraSection(Section):
    """LoRA is on: the model can serve that many adapters in one step, and keeps memory for them."""

    max_loras: Annotated[int, Field(ge=1, le=4096, description="most distinct adapters in a step")] = 1
    max_lora_rank: Annotated[
        Literal[1, 8, 16, 32, 64, 128, 256, 320, 512],
        Field(description="rank for which memory is kept; vLLM knows no others"),
    ] = 16


class AdaptersSection(PopularitySection):
    """Requests that name a LoRA adapter."""

    num_adapters: Annotated[int, Field(ge=1, le=30_000, description="different adapters")]
