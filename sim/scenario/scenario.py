"""The root of a scenario: one question about one cluster, with every field's type, bounds and meaning."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr

from sim.errors import Fault, InputError
from sim.scenario.cluster import ClusterSection
from sim.scenario.engine import EngineSection
from sim.scenario.resolve import UnknownContextLengthError, filled_engine
from sim.scenario.section import (
    GpuName,
    ModelName,
    NonNegativeFloat,
    PositiveFloat,
    Section,
    WeightDtypeName,
)
from sim.scenario.slo import Slo
from sim.scenario.workload import MixWorkload, WorkloadSection
from sim.scenario.yaml_text import Data, Places, yaml_text
from sim.version import dryserve_version

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
    model: Annotated[
        ModelName,
        Field(description="model by its Hugging Face id or its end, or the path of its config.json"),
    ]
    weight_dtype: Annotated[
        WeightDtypeName,
        Field(description="type of the weights, such as bf16 or fp8; auto = what the model's name implies"),
    ] = "auto"
    gpu: Annotated[GpuName, Field(description="GPU by name, such as h100-sxm")]
    calibration: Annotated[
        str | None,
        Field(
            min_length=1,
            description="calibration file of the GPU or of your own machine; null = that shipped",
        ),
    ] = None
    cluster: Annotated[ClusterSection, Field(description="replicas and router")] = (
        ClusterSection.with_defaults()
    )
    engine: Annotated[EngineSection, Field(description="settings of each replica, in vLLM's names")] = (
        EngineSection.with_defaults()
    )
    workload: Annotated[WorkloadSection, Field(description="the requests")]
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

    @cached_property
    def resolved(self) -> Self:
        """This scenario with every default of the engine's version and GPU written out; worked out once.

        Only `num_gpu_blocks_override` may stay null, and switches that the release does not have. Raises
        `InputError` if the context length of the model is not known.
        """
        try:
            engine = filled_engine(self.engine, self.model, self.gpu)
        except UnknownContextLengthError as error:
            raise InputError([self.fault("engine.max_model_len", str(error))]) from None
        return self.model_copy(update={"engine": engine})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values for some fields, which does not take `resolved` along."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("resolved", None)
        return copied

    def as_data(self) -> dict[str, Data]:
        """Every field as a file would give it: lists are tuples."""
        return {name: _as_data(value) for name, value in self.model_dump(mode="json").items()}

    def dump_resolved(self) -> str:
        """YAML of every field, engine defaults filled in; equal scenarios and versions give equal text."""
        head = f"mirrors vLLM {self.engine.version}; every default written out"
        return f"# dryserve {dryserve_version()}; {head}\n{yaml_text(self.resolved.model_dump(mode='json'))}"

    def model_post_init(self, context: object) -> None:
        """Takes note of where the values were given, if the loader says so."""
        if isinstance(context, Places):
            self._places = context


def _as_data(value: object) -> Data:
    if isinstance(value, dict):
        return {str(key): _as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_as_data(item) for item in value)
    assert value is None or isinstance(value, (str, int, float, bool))
    return value
