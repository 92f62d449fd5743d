"""The root of a scenario: one question about one cluster, with every field's type, bounds and meaning."""

from typing import Annotated, Self

from pydantic import Field, PrivateAttr

from sim.errors import Fault
from sim.scenario.cluster import ClusterSection
from sim.scenario.engine import EngineSection
from sim.scenario.names import GpuName, ModelName, WeightDtypeName
from sim.scenario.places import Places
from sim.scenario.resolved import dump_resolved
from sim.scenario.section import NonNegativeFloat, PositiveFloat, Section
from sim.scenario.slo import Slo
from sim.scenario.workload import MixWorkload, Workload

NAME_PATTERN, MOST_NAME_LETTERS = r"^[A-Za-z0-9][A-Za-z0-9._-]*$", 100


class Scenario(Section):
    """A cluster, the traffic that it gets, and the latency it promises."""

    name: Annotated[
        str,
        Field(
            pattern=NAME_PATTERN,
            max_length=MOST_NAME_LETTERS,
            description="names the results; default: file name",
        ),
    ] = "scenario"
    description: Annotated[str, Field(description="the question, in words")] = ""
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1, description="source of all randomness")] = 0
    model: Annotated[ModelName, Field(description="model by its Hugging Face id or its end")]
    weight_dtype: Annotated[
        WeightDtypeName,
        Field(description="type of the weights, such as bf16 or fp8; auto = what the model's name implies"),
    ] = "auto"
    gpu: Annotated[GpuName, Field(description="GPU by name, such as h100-sxm")]
    cluster: Annotated[ClusterSection, Field(description="replicas and router")] = ClusterSection.untold()
    engine: Annotated[EngineSection, Field(description="settings of each replica, in vLLM's names")] = (
        EngineSection.untold()
    )
    workload: Annotated[Workload, Field(description="the requests")]
    slo: Annotated[Slo | None, Field(description="latency targets, such as {ttft_p99: 1s}; null = none")] = (
        None
    )
    horizon_s: Annotated[
        PositiveFloat | None,
        Field(description="stop the clock here, whoever is in flight; null = run until all end"),
    ] = None
    warmup_s: Annotated[
        NonNegativeFloat, Field(description="requests that arrive before this are left out of the statistics")
    ] = 0.0

    _places: Places = PrivateAttr(default_factory=Places)
    _workload_path: str = PrivateAttr(default="workload")

    def fault(self, path: str, message: str) -> Fault:
        """A fault found after loading, at the place where `path` (say `engine.max_num_seqs`) was given."""
        if path.startswith("workload."):
            path = self._workload_path + path.removeprefix("workload")
        return Fault(self._places.where(tuple(path.split("."))), path, message)

    def part(self, name: str) -> Self:
        """This scenario with one part of its mixed workload alone; faults still point into the file."""
        assert isinstance(self.workload, MixWorkload)
        alone = self.model_copy(update={"workload": self.workload.workloads[name]})
        alone._workload_path = f"workload.workloads.{name}"  # noqa: SLF001
        return alone

    def dump_resolved(self) -> str:
        """YAML of every field, engine defaults filled in; equal scenarios and versions give equal text."""
        return dump_resolved(self)

    def model_post_init(self, context: object) -> None:
        """Takes note of where the values were given, if the loader says so."""
        if isinstance(context, Places):
            self._places = context
