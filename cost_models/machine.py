"""What one machine has of its own: the few constants in which it differs from others of its GPU part.

They are found from a recording of an engine at work (`sim.evidence.own_machine`) and stand in its calibration
file, under `machine`. Everything that is left out is as shipped for the GPU part and the engine release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from cost_models.engines import EngineProfile
from cost_models.errors import CalibrationError
from cost_models.gpus import Gpu

HOST_CONSTANTS: Final = ("step_host_s", "request_host_s", "step_gap_s")
GAINS: Final = ("memory_gain", "compute_gain", "all_reduce_gain")


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of one machine.

    step_host_s, request_host_s, step_gap_s: in place of the release's, as in `EngineProfile`, s; None: the
    release's own. memory_gain, compute_gain: speed of memory and of arithmetic in all kernels, relative to
    the calibration of the part. all_reduce_gain: speed of all-reduces and the other collectives between the
    GPUs of a server, relative to it. fitted: the names of the constants that the machine itself has shown.
    """

    step_host_s: float | None = None
    request_host_s: float | None = None
    step_gap_s: float | None = None
    memory_gain: float = 1.0
    compute_gain: float = 1.0
    all_reduce_gain: float = 1.0
    fitted: tuple[str, ...] = ()

    def gpu(self, part: Gpu) -> Gpu:
        """The GPU part with the memory and the arithmetic of this machine."""
        return replace(
            part,
            memory_bytes_per_s=part.memory_bytes_per_s * self.memory_gain,
            bf16_flop_per_s=part.bf16_flop_per_s * self.compute_gain,
            fp8_flop_per_s=part.fp8_flop_per_s * self.compute_gain,
            int8_op_per_s=part.int8_op_per_s * self.compute_gain,
            fp4_flop_per_s=part.fp4_flop_per_s * self.compute_gain,
        )

    def profile(self, release: EngineProfile) -> EngineProfile:
        """The host times of the release, but for those that this machine has shown."""
        own = {name: getattr(self, name) for name in HOST_CONSTANTS}
        return replace(release, **{name: value for name, value in own.items() if value is not None})

    @property
    def is_as_shipped(self) -> bool:
        """Whether nothing is changed."""
        return self.values() == AS_SHIPPED.values()

    def values(self) -> dict[str, float | None]:
        """The constants by name."""
        return {name: getattr(self, name) for name in (*HOST_CONSTANTS, *GAINS)}

    def as_data(self) -> dict[str, object]:
        """What a calibration file says of it: only what the machine has shown."""
        values = self.values()
        return {name: values[name] for name in self.fitted}


AS_SHIPPED: Final = Machine()


def read_machine(section: object, where: str) -> Machine:
    """The constants that a calibration file gives under `machine`; CalibrationError names what is wrong."""
    if not isinstance(section, Mapping):
        raise CalibrationError(f"{where}: machine: expected a table of constants")
    faults = []
    for name, value in section.items():
        if name not in (*HOST_CONSTANTS, *GAINS):
            faults.append(f"{name}: unknown; there are {', '.join((*HOST_CONSTANTS, *GAINS))}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            faults.append(f"{name}: must be a number, not {value!r}")
        elif name in GAINS and not 0.05 <= value <= 20.0:
            faults.append(f"{name}: must be from 0.05 to 20, not {value:g}")
        elif name in HOST_CONSTANTS and not 0.0 <= value <= 1.0:
            faults.append(f"{name}: must be from 0 to 1 s, not {value:g}")
    if faults:
        raise CalibrationError("; ".join(f"{where}: machine: {fault}" for fault in faults))
    return Machine(**{name: float(value) for name, value in section.items()}, fitted=tuple(section))
