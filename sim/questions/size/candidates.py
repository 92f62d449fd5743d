"""What could be bought: combinations of GPU, tensor parallelism and settings, and why some cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cost_models
from cost_models import UnknownNameError
from sim.errors import Fault, InputError
from sim.questions.sweep.axes import Axis, Values, make_axes
from sim.questions.sweep.cells import make_cells, words
from sim.scenario import Scenario
from sim.scenario.yaml_text import Data, parse_grid
from sim.setup import EngineSetup, engine_setup

GPU, TENSOR = "gpu", "engine.tensor_parallel_size"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to build a replica. `fault` says why it cannot run; then there is no `setup`."""

    setting: dict[str, Data]
    scenario: Scenario | None
    setup: EngineSetup | None
    fault: str | None

    @property
    def gpus(self) -> int:
        """GPUs of a replica; 0 if it cannot run."""
        return 0 if self.scenario is None else self.scenario.engine.num_gpus

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return str(self.setting[GPU])

    @property
    def label(self) -> str:
        """In words, such as `h100-sxm TP 2, max_num_seqs 64`."""
        rest = [
            f"{p.rpartition('.')[2]} {words(v)}" for p, v in self.setting.items() if p not in (GPU, TENSOR)
        ]
        return ", ".join([f"{self.gpu} TP {self.setting[TENSOR]}", *rest])

    @property
    def kv_tokens_per_gpu(self) -> float:
        """Tokens in a replica's KV cache over its GPUs."""
        if self.setup is None:
            return 0.0
        return self.setup.num_gpu_blocks * self.setup.replica.kv_cache.block_size / self.gpus


def make_candidates(
    base: Scenario,
    gpus: Sequence[str],
    tensor_parallel: str | Sequence[int] | None,
    grids: Sequence[str] | Mapping[str, Values],
    *,
    allow_plugins: bool = False,
) -> list[Candidate]:
    """Every combination, the scenario's own where nothing varies; raises `InputError` with all mistakes.

    A model that does not fit is no mistake, but a candidate that cannot run.
    """
    faults: list[Fault] = []
    axes = [_gpu_axis(base, gpus, faults), _tensor_axis(base, tensor_parallel, faults)]
    more, mistakes = make_axes(base, grids)
    faults += mistakes
    for axis in more:
        if axis.paths[0] == GPU or axis.paths[0] == TENSOR:
            option = "--gpus" if axis.paths[0] == GPU else "--tp"
            faults.append(Fault(axis.where[0], None, f"is given by {option}"))
        elif axis.paths[0].startswith(("cluster.replicas", "workload.rate_per_s")):
            faults.append(Fault(axis.where[0], None, "is what size looks for"))
    if faults:
        raise InputError(faults)
    found = []
    for cell in make_cells(base, [*axes, *more]):
        setup, fault = None, cell.fault
        if cell.scenario is not None:
            setup, fault = _set_up(cell.scenario, allow_plugins)
        found.append(Candidate(dict(cell.setting), cell.scenario, setup, fault))
    return found


def _set_up(scenario: Scenario, allow_plugins: bool) -> tuple[EngineSetup | None, str | None]:
    try:
        setup = engine_setup(scenario, allow_plugins=allow_plugins)
    except InputError as error:
        return None, "; ".join(fault.message for fault in error.faults)
    asked, most = setup.engine.max_model_len, setup.replica.scheduler.max_model_len
    if asked is not None and most < asked:
        blocks = f"{setup.num_gpu_blocks:,} KV blocks"
        return None, f"{blocks} hold {most:,} tokens of one request, not its max_model_len of {asked:,}"
    return setup, None


def _gpu_axis(base: Scenario, gpus: Sequence[str], faults: list[Fault]) -> Axis:
    names: dict[str, None] = {}
    for name in gpus or (base.gpu,):
        try:
            names[cost_models.gpu(name.strip()).name] = None
        except UnknownNameError as error:
            faults.append(Fault("--gpus", None, str(error)))
    return Axis((GPU,), tuple((name,) for name in names), ("--gpus",))


def _tensor_axis(base: Scenario, given: str | Sequence[int] | None, faults: list[Fault]) -> Axis:
    values: Sequence[Data] = [base.engine.tensor_parallel_size]
    if given is not None:
        try:
            values = parse_grid(given, where=f"--tp {given}") if isinstance(given, str) else list(given)
        except InputError as error:
            faults += error.faults
        faults += [
            Fault(f"--tp {given}", None, f"must be whole numbers (got {words(value)})")
            for value in values
            if type(value) is not int
        ]
    return Axis((TENSOR,), tuple((value,) for value in dict.fromkeys(values)), ("--tp",))
